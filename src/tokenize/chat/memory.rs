//! What the values of templates take on the heap. `tests/allocations.rs` compares it with what is taken.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::messages::entries;

/// What a list and a map take on the heap beside their elements, and a text beside its bytes: counters, and what fills it up.
const LIST_BYTES: usize = 48;
const MAP_BYTES: usize = 112;
const TEXT_BYTES: usize = 24;

/// What one place in a map takes: key, value and hash, and its mark in a table.
const PLACE_BYTES: usize = 2 * size_of::<Value>() + 17;

/// Bytes that `value` holds on the heap, or a little more: of lists and maps it is not known how much room they have, so it is
/// taken for as much as they could have come to have as they grew. Not to be had from the JSON: `{}` takes fifty times its text.
/// O(values).
pub(super) fn heap_bytes(value: &Value) -> usize {
    let elements = || value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::String => TEXT_BYTES + value.as_str().map_or(0, str::len),
        ValueKind::Seq => {
            let places = value.len().unwrap_or(0).next_power_of_two().max(4);
            LIST_BYTES + places * size_of::<Value>() + elements().map(|element| heap_bytes(&element)).sum::<usize>()
        }
        ValueKind::Map => {
            // A table is at most seven eighths full.
            let len = value.len().unwrap_or(0);
            let places = if len == 0 { 0 } else { (len + len.div_ceil(7)).next_power_of_two().max(4) };
            let entry = |(key, value): &(Value, Value)| heap_bytes(key) + heap_bytes(value);
            MAP_BYTES + places * PLACE_BYTES + entries(value).iter().map(entry).sum::<usize>()
        }
        _ => 0,
    }
}

#![no_main]

#[path = "../../tests/frames/survival.rs"]
mod survival;

use warmpath_indexer::codec::Format;

libfuzzer_sys::fuzz_target!(|message: &[u8]| survival::survives(Format::Json, message));

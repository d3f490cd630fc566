//! The event log of the Tair KVCache manager (`publisher_log`): look-ups, and writes in two phases. A write takes effect when
//! it is finished; one of which no end is logged counts as finished 100 ms after its start.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use super::tair::{Key, from_the_first, ids, tokens_of};
use super::{About, Access, Heard, Lines, TraceRequest};

/// How long a write takes whose end is not logged.
const WRITE_MS: u64 = 100;
/// Writes that wait for their end; the oldest counts as finished when there are more.
const OPEN_MAX: usize = 1 << 20;

/// Writes that have begun.
pub(super) struct Events {
    block: u32,
    open: HashMap<String, TraceRequest>,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    source: Option<String>,
    trigger_time_us: u64,
    #[serde(default)]
    keys: Vec<Key>,
    #[serde(default)]
    tokens: Vec<i64>,
    write_session_id: Option<String>,
    #[serde(alias = "success_blocks")]
    success_block: Option<Value>,
}

impl Events {
    pub(super) fn new(block: u32) -> Self {
        Self { block: block.max(1), open: HashMap::new() }
    }

    fn request(&self, line: Line, access: Access) -> Result<TraceRequest, String> {
        let hash_ids = ids(line.keys, &line.tokens, self.block);
        let model = super::name(line.source, "source")?;
        Ok(TraceRequest {
            at_ms: super::at(line.trigger_time_us / 1_000)?,
            input_length: tokens_of(hash_ids.len(), self.block),
            output_length: 0,
            hash_ids,
            about: Some(Box::new(About { model, access, ..About::default() })),
        })
    }
}

impl Lines for Events {
    fn line(&mut self, text: &[u8], requests: &mut Vec<TraceRequest>) -> Result<Heard, String> {
        let mut line: Line = super::json::read(text)?;
        let session = line.write_session_id.take();
        let session = || session.clone().ok_or("missing field `write_session_id`");
        match line.kind.as_str() {
            "GetCacheLocation" => requests.push(self.request(line, Access::Read)?),
            "StartWriteCache" => {
                let write = self.request(line, Access::Write)?;
                if self.open.len() >= OPEN_MAX {
                    return Err(format!("more than {OPEN_MAX} writes without an end"));
                }
                self.open.insert(session()?, write);
            }
            "FinishWriteCache" => {
                // A log may begin between the two.
                let Some(mut write) = self.open.remove(&session()?) else { return Ok(Heard::Ignored) };
                write.at_ms = super::at(line.trigger_time_us / 1_000)?;
                if let Some(mask) = &line.success_block {
                    keep(&mut write.hash_ids, mask)?;
                    write.input_length = tokens_of(write.hash_ids.len(), self.block);
                }
                requests.push(write);
            }
            // What the manager evicts is for the optimizer to decide.
            _ => return Ok(Heard::Ignored),
        }
        Ok(Heard::Used)
    }

    fn end(&mut self, requests: &mut Vec<TraceRequest>) {
        let mut open: Vec<_> = self.open.drain().collect();
        open.sort_by(|(a, one), (b, other)| (one.at_ms, a).cmp(&(other.at_ms, b)));
        requests.extend(open.into_iter().map(|(_, write)| TraceRequest { at_ms: write.at_ms + WRITE_MS, ..write }));
        from_the_first(requests);
    }
}

/// Keeps the blocks that were written: the first so many, or those whose flag is set.
fn keep(ids: &mut Vec<u64>, mask: &Value) -> Result<(), String> {
    let mask = match mask {
        Value::Object(fields) => ["offset", "bool_masks", "values"].iter().find_map(|name| fields.get(*name)),
        mask => Some(mask),
    };
    match mask {
        Some(Value::Number(count)) => {
            let count = count.as_u64().ok_or("`success_block` is no count")?;
            ids.truncate(usize::try_from(count).unwrap_or(usize::MAX));
            Ok(())
        }
        Some(Value::Array(flags)) => {
            let mut flags = flags.iter();
            ids.retain(|_| flags.next().and_then(Value::as_bool) == Some(true));
            Ok(())
        }
        Some(Value::Object(inner)) => match inner.get("values") {
            Some(values @ Value::Array(_)) => keep(ids, values),
            _ => Err("`success_block` is no mask".to_owned()),
        },
        _ => Err("`success_block` is no mask".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Access, Format, Options, Trace};

    fn read(lines: &[&str]) -> Trace {
        let options = Options { block_size: Some(4), ..Options::default() };
        Trace::read(lines.join("\n").as_bytes(), &options).unwrap()
    }

    #[test]
    fn a_write_takes_effect_at_its_end_or_after_100_ms() {
        let trace = read(&[
            r#"{"id":"1","source":"i","component":"c","type":"GetCacheLocation","trigger_time_us":1000000,"query_type":"QT_PREFIX_MATCH","keys":[1,2],"tokens":[]}"#,
            r#"{"source":"i","type":"StartWriteCache","trigger_time_us":1001000,"write_session_id":"a","keys":[1,2],"write_timeout_seconds":30}"#,
            r#"{"source":"i","type":"StartWriteCache","trigger_time_us":1002000,"write_session_id":"b","keys":[3,4,5]}"#,
            r#"{"source":"i","type":"FinishWriteCache","trigger_time_us":1250000,"write_session_id":"b","success_block":[true,false,true]}"#,
            r#"{"source":"i","type":"FinishWriteCache","trigger_time_us":1260000,"write_session_id":"gone","success_block":[true]}"#,
            r#"{"source":"i","type":"CacheReclaimSubmit","trigger_time_us":1270000,"block_keys":[1],"delay_us":0}"#,
        ]);
        assert_eq!((trace.format, trace.block_size, trace.skipped), (Format::TairEvents, 4, 2));
        let seen: Vec<_> = trace.requests.iter().map(|r| (r.at_ms, r.access(), r.hash_ids.clone())).collect();
        let expected =
            [(0, Access::Read, vec![1, 2]), (101, Access::Write, vec![1, 2]), (250, Access::Write, vec![3, 5])];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_mask_may_be_a_count_and_may_stand_in_an_object() {
        for (mask, kept) in [
            ("2", 2),
            (r#"{"offset":1}"#, 1),
            (r#"{"bool_masks":{"values":[true,true,false]}}"#, 2),
            (r#"{"values":[false,false,true]}"#, 1),
            ("[]", 0),
        ] {
            let finish = format!(
                r#"{{"type":"FinishWriteCache","trigger_time_us":2,"write_session_id":"b","success_block":{mask}}}"#
            );
            let start = r#"{"type":"StartWriteCache","trigger_time_us":1,"write_session_id":"b","keys":[3,4,5]}"#;
            assert_eq!(read(&[start, &finish]).requests[0].hash_ids.len(), kept, "{mask}");
        }
    }

    #[test]
    fn a_mask_that_is_none_and_a_write_without_a_name_are_refused() {
        let start = r#"{"type":"StartWriteCache","trigger_time_us":1,"keys":[3]}"#;
        let error = Trace::read(start.as_bytes(), &Options::default()).unwrap_err().to_string();
        assert_eq!(error, "line 1: missing field `write_session_id`");
        let lines = concat!(
            r#"{"type":"StartWriteCache","trigger_time_us":1,"write_session_id":"b","keys":[3]}"#,
            "\n",
            r#"{"type":"FinishWriteCache","trigger_time_us":2,"write_session_id":"b","success_block":"x"}"#
        );
        let error = Trace::read(lines.as_bytes(), &Options::default()).unwrap_err().to_string();
        assert_eq!(error, "line 2: `success_block` is no mask");
    }
}

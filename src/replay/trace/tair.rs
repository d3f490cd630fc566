//! What the optimizer of the Tair KVCache manager reads (`optimizer_schema`): reads, writes and whole turns of dialogues, by
//! `type` (`get`, `write`, `request`) or, in its older form without one, by their fields.

use serde::Deserialize;

use super::{About, Access, Heard, Lines, TraceRequest};

/// Lines of the schema; times are since the first.
pub(super) struct Schema {
    block: u32,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: Option<String>,
    instance_id: Option<String>,
    timestamp_us: Option<u64>,
    timestamp_ns: Option<u64>,
    #[serde(default)]
    keys: Vec<Key>,
    #[serde(default)]
    tokens: Vec<i64>,
    query_type: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    input_len: i64,
    #[serde(default)]
    output_len: i64,
    #[serde(default)]
    total_keys: Vec<Key>,
}

/// The name of a block: 64 bits, signed or not.
#[derive(Clone, Copy)]
pub(super) struct Key(pub(super) u64);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Unsigned(u64),
            Signed(i64),
        }
        Ok(Self(match Either::deserialize(deserializer)? {
            Either::Unsigned(key) => key,
            Either::Signed(key) => key.cast_unsigned(),
        }))
    }
}

impl Schema {
    pub(super) fn new(block: u32) -> Self {
        Self { block: block.max(1) }
    }
}

impl Lines for Schema {
    fn line(&mut self, text: &[u8], requests: &mut Vec<TraceRequest>) -> Result<Heard, String> {
        let line: Line = super::json::read(text)?;
        let at_ms = match (line.timestamp_us, line.timestamp_ns) {
            (Some(us), _) => super::at(us / 1_000)?,
            (None, Some(ns)) => super::at(ns / 1_000_000)?,
            (None, None) => return Err("neither `timestamp_us` nor `timestamp_ns`".to_owned()),
        };
        let access = match line.kind.as_deref() {
            Some("get") => Access::Read,
            Some("write") => Access::Write,
            Some("request") => Access::Request,
            Some(_) => return Err("`type` must be get, write or request".to_owned()),
            None if !line.total_keys.is_empty() || line.output_len > 0 => Access::Request,
            None if line.query_type.is_some() => Access::Read,
            None => Access::Write,
        };
        let hash_ids = ids(line.keys, &line.tokens, self.block);
        let counted = tokens_of(hash_ids.len(), self.block);
        let input_length = match line.input_len {
            0 => counted,
            told => u32::try_from(told).map_err(|_| "`input_len` is no count of tokens".to_owned())?,
        };
        let output_length = u32::try_from(line.output_len).map_err(|_| "`output_len` is no count of tokens")?;
        let model = super::name(line.instance_id, "instance_id")?;
        let about = |access| Some(Box::new(About { model: model.clone(), access, ..About::default() }));
        let prompt = hash_ids.len();
        requests.push(TraceRequest { at_ms, input_length, output_length, hash_ids, about: about(access) });
        if line.total_keys.len() > prompt {
            // What was generated is stored as well, and was never asked for.
            let hash_ids = ids(line.total_keys, &[], self.block);
            let input_length = tokens_of(hash_ids.len(), self.block);
            let about = about(Access::Write);
            requests.push(TraceRequest { at_ms, input_length, output_length: 0, hash_ids, about });
        }
        Ok(Heard::Used)
    }

    fn end(&mut self, requests: &mut Vec<TraceRequest>) {
        from_the_first(requests);
    }
}

/// Block ids from keys, or from token ids where there are none.
pub(super) fn ids(keys: Vec<Key>, tokens: &[i64], block: u32) -> Vec<u64> {
    if !keys.is_empty() || tokens.is_empty() {
        return keys.into_iter().map(|key| key.0).collect();
    }
    let block = usize::try_from(block).unwrap_or(usize::MAX);
    let mut hash = 0;
    tokens
        .chunks_exact(block)
        .map(|tokens| {
            hash = tokens.iter().fold(hash, |hash, token| mix(hash, *token));
            hash.cast_unsigned()
        })
        .collect()
}

/// Tokens of so many blocks.
pub(super) fn tokens_of(blocks: usize, block: u32) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX).saturating_mul(block)
}

/// In order of time, with times since the first.
pub(super) fn from_the_first(requests: &mut [TraceRequest]) {
    requests.sort_by_key(|request| request.at_ms);
    let first = requests.first().map_or(0, |request| request.at_ms);
    requests.iter_mut().for_each(|request| request.at_ms -= first);
}

/// Ids that name each block with all before it, from ids that name it alone.
pub(super) fn chained(ids: impl Iterator<Item = i64>) -> Vec<u64> {
    let mut hash = 0;
    ids.map(|id| {
        hash = mix(hash, id);
        hash.cast_unsigned()
    })
    .collect()
}

/// The manager's own mix of a hash and what follows it, after Jenkins.
fn mix(hash: i64, value: i64) -> i64 {
    let golden = 0x9e37_79b9_7f4a_7c15_u64.cast_signed();
    hash ^ value.wrapping_add(golden).wrapping_add(hash << 12).wrapping_add(hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::super::{Access, Format, Options, Trace};
    use super::*;

    fn read(text: &str) -> Trace {
        Trace::read(text.as_bytes(), &Options { block_size: Some(4), ..Options::default() }).unwrap()
    }

    #[test]
    fn ids_are_mixed_as_the_manager_mixes_them() {
        let golden = [-7_046_029_254_386_353_131_i64, -8_366_447_769_517_737_510, 8_024_479_182_908_407_281];
        assert_eq!(chained([0, 1, 2].into_iter()), golden.map(i64::cast_unsigned));
        // Of token ids, whole blocks only: the chain goes on from block to block.
        assert_eq!(ids(Vec::new(), &[0, 1, 2, 9], 3), [golden[2].cast_unsigned()]);
    }

    #[test]
    fn reads_writes_and_turns_are_told_apart_with_or_without_a_type() {
        let older = read(concat!(
            r#"{"instance_id":"i","trace_id":"a","timestamp_us":5000000,"keys":[1,-2],"query_type":"prefix_match","input_len":0}"#,
            "\n",
            r#"{"instance_id":"i","trace_id":"b","timestamp_us":5004000,"keys":[1,-2]}"#,
            "\n",
            r#"{"instance_id":"i","timestamp_us":5002000,"keys":[1],"query_type":"prefix_match","input_len":6,"output_len":5,"total_keys":[1,7]}"#,
        ));
        assert_eq!((older.format, older.block_size), (Format::TairOptimizer, 4));
        let seen: Vec<_> =
            older.requests.iter().map(|r| (r.at_ms, r.access(), r.input_length, r.hash_ids.len())).collect();
        let turn = [(2, Access::Request, 6, 1), (2, Access::Write, 8, 2)];
        assert_eq!(seen, [(0, Access::Read, 8, 2), turn[0], turn[1], (4, Access::Write, 8, 2)]);
        assert_eq!(older.requests[0].hash_ids, [1, (-2_i64).cast_unsigned()]);

        let newer = read(concat!(
            r#"{"type":"get","timestamp_ns":1000000,"keys":[18446744073709551615],"input_len":5}"#,
            "\n",
            r#"{"type":"write","timestamp_ns":3000000,"keys":[1]}"#,
        ));
        let seen: Vec<_> = newer.requests.iter().map(|r| (r.at_ms, r.access(), r.hash_ids[0])).collect();
        assert_eq!(seen, [(0, Access::Read, u64::MAX), (2, Access::Write, 1)]);
    }

    #[test]
    fn what_is_only_written_is_no_request() {
        let text = concat!(
            r#"{"type":"write","timestamp_ns":1,"keys":[1]}"#,
            "\n",
            r#"{"type":"get","timestamp_ns":1,"keys":[1],"input_len":64}"#,
        );
        assert_eq!(super::super::read(text.as_bytes()).unwrap().len(), 1);
    }
}

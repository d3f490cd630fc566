//! Bailian's usage traces (`qwen-bailian-usagetraces-anon`): times in seconds, blocks of 16 tokens, turns that name the one
//! before them. Ids name a block without what comes before it, so they are chained here.

use std::collections::HashMap;

use serde::Deserialize;

use super::tair::chained;
use super::{About, Heard, Lines, TraceRequest};

/// Which conversation each turn belongs to.
#[derive(Default)]
pub(super) struct Bailian {
    roots: HashMap<i64, i64>,
}

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<i64>,
    chat_id: Option<i64>,
    parent_chat_id: Option<i64>,
    #[serde(rename = "type")]
    class: Option<String>,
}

impl Lines for Bailian {
    fn line(&mut self, text: &[u8], requests: &mut Vec<TraceRequest>) -> Result<Heard, String> {
        let line: Line = super::json::read(text)?;
        let at_ms = super::at(ms(line.timestamp).ok_or("`timestamp` must be seconds, 0 or more")?)?;
        let root = line.chat_id.map(|chat| {
            let parent = line.parent_chat_id.unwrap_or(-1);
            let root = self.roots.get(&parent).copied().unwrap_or(if parent < 0 { chat } else { parent });
            self.roots.insert(chat, root);
            root
        });
        let about = About {
            session: root.map(|root| root.to_string()),
            class: super::name(line.class, "type")?,
            ..About::default()
        };
        requests.push(TraceRequest {
            at_ms,
            input_length: line.input_length,
            output_length: line.output_length,
            hash_ids: chained(line.hash_ids.into_iter()),
            about: (about != About::default()).then(|| Box::new(about)),
        });
        Ok(Heard::Used)
    }
}

#[expect(clippy::as_conversions, reason = "in range by the check before")]
fn ms(seconds: f64) -> Option<u64> {
    let ms = (seconds * 1e3).round();
    (0.0..9e15).contains(&ms).then_some(ms as u64)
}

#[cfg(test)]
mod tests {
    use super::super::{Format, Options, Trace};

    #[test]
    fn seconds_become_ms_ids_are_chained_and_turns_share_a_session() {
        let text = concat!(
            r#"{"chat_id":159,"parent_chat_id":-1,"timestamp":61.114,"input_length":40,"output_length":3,"type":"text","turn":1,"hash_ids":[0,1,2]}"#,
            "\n",
            r#"{"chat_id":160,"parent_chat_id":159,"timestamp":62.5,"input_length":40,"output_length":3,"type":"text","turn":2,"hash_ids":[0,2,1]}"#,
            "\n",
            r#"{"chat_id":161,"parent_chat_id":160,"timestamp":63,"input_length":20,"output_length":3,"type":"text","turn":3,"hash_ids":[0]}"#,
        );
        let trace = Trace::read(text.as_bytes(), &Options::default()).unwrap();
        assert_eq!((trace.format, trace.block_size), (Format::Bailian, 16));
        let times: Vec<_> = trace.requests.iter().map(|request| request.at_ms).collect();
        assert_eq!(times, [61_114, 62_500, 63_000]);
        assert!(trace.requests.iter().all(|request| request.session() == Some("159")));
        let [a, b, c] = [0, 1, 2].map(|at| &trace.requests[at].hash_ids);
        let golden = [-7_046_029_254_386_353_131_i64, -8_366_447_769_517_737_510, 8_024_479_182_908_407_281];
        assert_eq!(*a, golden.map(i64::cast_unsigned));
        // The same block behind another is another; the same first block is the same.
        assert_eq!((a[0], a[0]), (b[0], c[0]));
        assert_ne!(a[2], b[2]);
        assert_ne!(a[1], b[2]);
    }

    #[test]
    fn requests_are_in_order_of_time_whatever_that_of_their_lines() {
        let line = |at: f64| {
            format!("{{\"chat_id\":1,\"timestamp\":{at},\"input_length\":1,\"output_length\":1,\"hash_ids\":[]}}")
        };
        let text = [5.0, 1.0, 9.0, 2.0].map(line).join("\n");
        let trace = Trace::read(text.as_bytes(), &Options::default()).unwrap();
        assert_eq!(trace.format, Format::Bailian);
        assert!(trace.requests.iter().map(|request| request.at_ms).eq([1000, 2000, 5000, 9000]));
    }

    #[test]
    fn a_time_that_is_none_is_refused() {
        let text = r#"{"chat_id":1,"timestamp":-1.5,"input_length":1,"output_length":1,"hash_ids":[]}"#;
        let error = Trace::read(text.as_bytes(), &Options::default()).unwrap_err().to_string();
        assert_eq!(error, "line 1: `timestamp` must be seconds, 0 or more");
    }
}

//! Mooncake's form, and ours, which adds to it.

use std::fmt;
use std::io::Write;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{About, Access, Heard, Lines, TraceRequest, at, name};

/// Every line stands for itself.
pub(super) struct Plain;

#[derive(Deserialize, Serialize)]
struct Line {
    #[serde(deserialize_with = "whole_ms")]
    timestamp: u64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block_size: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    /// `read` or `write`, where the line is no whole request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access: Option<String>,
}

/// A time that is no fraction: one may be meant as seconds.
fn whole_ms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct WholeMs;

    impl Visitor<'_> for WholeMs {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a time in whole milliseconds")
        }

        fn visit_u64<E: Error>(self, ms: u64) -> Result<u64, E> {
            Ok(ms)
        }

        fn visit_f64<E: Error>(self, time: f64) -> Result<u64, E> {
            Err(E::custom(format_args!(
                "must be whole milliseconds, got {time:?}: round it, or multiply it by 1000 where it is in seconds"
            )))
        }
    }

    deserializer.deserialize_u64(WholeMs)
}

impl Lines for Plain {
    fn line(&mut self, text: &[u8], requests: &mut Vec<TraceRequest>) -> Result<Heard, String> {
        let line: Line = super::json::read(text)?;
        if line.block_size == Some(0) {
            return Err("`block_size` must be above 0".to_owned());
        }
        let access = match line.access.as_deref() {
            None | Some("request") => Access::Request,
            Some("read") => Access::Read,
            Some("write") => Access::Write,
            Some(_) => return Err("`access` must be request, read or write".to_owned()),
        };
        let about = About {
            model: name(line.model, "model")?,
            session: name(line.session, "session")?,
            tenant: name(line.tenant, "tenant")?,
            class: name(line.class, "class")?,
            block_size: line.block_size,
            access,
        };
        requests.push(TraceRequest {
            at_ms: at(line.timestamp)?,
            input_length: line.input_length,
            output_length: line.output_length,
            hash_ids: line.hash_ids,
            about: (about != About::default()).then(|| Box::new(about)),
        });
        Ok(Heard::Used)
    }
}

/// Writes a line with `block_size` in it.
pub(super) fn write(request: &TraceRequest, block_size: u32, to: &mut impl Write) -> std::io::Result<()> {
    let about = request.about.as_deref().cloned().unwrap_or_default();
    let access = match about.access {
        Access::Request => None,
        Access::Read => Some("read".to_owned()),
        Access::Write => Some("write".to_owned()),
    };
    let line = Line {
        timestamp: request.at_ms,
        input_length: request.input_length,
        output_length: request.output_length,
        hash_ids: request.hash_ids.clone(),
        block_size: Some(block_size),
        model: about.model,
        session: about.session,
        tenant: about.tenant,
        class: about.class,
        access,
    };
    serde_json::to_writer(&mut *to, &line)?;
    to.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::super::{Format, Options, Trace};

    #[test]
    fn what_is_written_reads_back_identically() {
        let text = concat!(
            r#"{"timestamp":7,"input_length":40,"output_length":2,"hash_ids":[1,18446744073709551615],"block_size":16,"#,
            r#""model":"m","session":"s","tenant":"t","class":"batch"}"#,
            "\n",
            r#"{"timestamp":9,"input_length":32,"output_length":1,"hash_ids":[1,2],"block_size":16,"access":"write"}"#,
            "\n",
        );
        let trace = Trace::read(text.as_bytes(), &Options::default()).unwrap();
        assert_eq!((trace.format, trace.block_size), (Format::Warmpath, 16));
        let mut written = Vec::new();
        trace.write(&mut written).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), text);
    }

    #[test]
    fn another_form_gains_its_block_size_and_stays_the_same_ever_after() {
        let text = br#"{"timestamp":7,"input_length":1000,"output_length":2,"hash_ids":[0,1]}"#;
        let trace = Trace::read(text, &Options::default()).unwrap();
        let (mut once, mut twice) = (Vec::new(), Vec::new());
        trace.write(&mut once).unwrap();
        let again = Trace::read(&once, &Options::default()).unwrap();
        again.write(&mut twice).unwrap();
        assert_eq!((again.format, again.block_size, &once), (Format::Warmpath, 512, &twice));
        assert_eq!(again.requests[0].hash_ids, trace.requests[0].hash_ids);
    }

    #[test]
    fn a_fraction_of_a_time_is_refused_by_its_name_and_never_taken_for_seconds() {
        let line = r#"{"timestamp":3000.0,"input_length":1000,"output_length":1,"hash_ids":[1,2],"block_size":512}"#;
        let own = Trace::read(line.as_bytes(), &Options::default());
        let named = Options { format: Some(Format::Mooncake), ..Options::default() };
        let bare = line.replace(r#","block_size":512"#, "");
        for read in [own, Trace::read(bare.as_bytes(), &named)] {
            let expected = "line 1: `timestamp`: must be whole milliseconds, got 3000.0: round it, or multiply it by 1000 \
                            where it is in seconds";
            assert_eq!(read.unwrap_err().to_string(), expected);
        }
        let error = Trace::read(line.replace("3000.0", "-3").as_bytes(), &Options::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 1: `timestamp`: invalid type: integer `-3`, expected a time in whole milliseconds"
        );
    }

    #[test]
    fn odd_values_are_refused() {
        for (field, message) in [
            (r#""block_size":0"#, "`block_size` must be above 0"),
            (r#""access":"delete""#, "`access` must be request, read or write"),
            (&format!("\"session\":\"{}\"", "s".repeat(257)), "`session` is longer than 256 bytes"),
        ] {
            let text = format!("{{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[],{field}}}");
            let error = Trace::read(text.as_bytes(), &Options::default()).unwrap_err().to_string();
            assert_eq!(error, format!("line 1: {message}"));
        }
    }
}

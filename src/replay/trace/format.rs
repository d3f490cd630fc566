//! The forms in which traces come.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// A form of JSON lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Mooncake's: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` of blocks of 512 tokens.
    Mooncake,
    /// Bailian's usage traces: `timestamp` in seconds, `chat_id`, `hash_ids` of blocks of 16 tokens that name a block alone.
    Bailian,
    /// The event log of the Tair KVCache manager.
    TairEvents,
    /// What its optimizer reads.
    TairOptimizer,
    /// Ours: Mooncake's, with `block_size` and, where they are known, `model`, `session`, `tenant` and `class`.
    Warmpath,
}

/// All forms, with their names.
const NAMES: [(Format, &str); 5] = [
    (Format::Mooncake, "mooncake"),
    (Format::Bailian, "bailian"),
    (Format::TairEvents, "tair-events"),
    (Format::TairOptimizer, "tair-optimizer"),
    (Format::Warmpath, "warmpath"),
];

/// The fields by which a line shows its form.
#[derive(Deserialize)]
struct Fields<'a> {
    chat_id: Option<IgnoredAny>,
    #[serde(borrow)]
    timestamp: Option<&'a RawValue>,
    timestamp_us: Option<IgnoredAny>,
    timestamp_ns: Option<IgnoredAny>,
    trigger_time_us: Option<IgnoredAny>,
    hash_ids: Option<IgnoredAny>,
    block_size: Option<IgnoredAny>,
    model: Option<IgnoredAny>,
    session: Option<IgnoredAny>,
    tenant: Option<IgnoredAny>,
    class: Option<IgnoredAny>,
}

impl Format {
    /// The form of a trace that begins with this line.
    ///
    /// # Errors
    /// It is none of ours.
    pub(super) fn detect(line: &[u8]) -> Result<Self, String> {
        let fields: Fields<'_> = super::json::read(line)?;
        if fields.trigger_time_us.is_some() {
            return Ok(Self::TairEvents);
        }
        if fields.timestamp_us.is_some() || fields.timestamp_ns.is_some() {
            return Ok(Self::TairOptimizer);
        }
        if fields.chat_id.is_some() {
            return Ok(Self::Bailian);
        }
        // Ours, even where times have fractions: read as Bailian's they would be seconds, and blocks of another size.
        let extras = [fields.block_size, fields.model, fields.session, fields.tenant, fields.class];
        if extras.iter().any(Option::is_some) {
            return Ok(Self::Warmpath);
        }
        let in_seconds = fields.timestamp.is_some_and(|time| time.get().contains('.'));
        if fields.hash_ids.is_some() && in_seconds {
            return Ok(Self::Bailian);
        }
        // Whatever is missing is said by the reader of the simplest form.
        if fields.hash_ids.is_some() || fields.timestamp.is_some() {
            return Ok(Self::Mooncake);
        }
        Err("a line of no known form; name it by `--format` (mooncake, bailian, tair-events, tair-optimizer, warmpath)"
            .to_owned())
    }

    /// Tokens that an id stands for where nobody says.
    pub fn block_size(self) -> u32 {
        match self {
            Self::Mooncake | Self::Warmpath => 512,
            Self::Bailian => 16,
            Self::TairEvents | Self::TairOptimizer => 64,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(format, _)| format == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(format, _)| *format).ok_or_else(|| {
            let names = NAMES.map(|(_, name)| name).join(", ");
            format!("no form of traces is called `{text}` (known: {names})")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_tells_the_form() {
        for (line, format) in [
            (r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[]}"#, Format::Mooncake),
            (r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[],"block_size":16}"#, Format::Warmpath),
            (r#"{"timestamp":0,"hash_ids":[],"model":"m"}"#, Format::Warmpath),
            (r#"{"chat_id":1,"parent_chat_id":-1,"timestamp":61,"hash_ids":[]}"#, Format::Bailian),
            (r#"{"chat_id":1,"timestamp":61.114,"hash_ids":[],"model":"m"}"#, Format::Bailian),
            (r#"{"timestamp":61.114,"hash_ids":[]}"#, Format::Bailian),
            (r#"{"timestamp":61.114,"hash_ids":[],"block_size":16}"#, Format::Warmpath),
            (r#"{"timestamp":61.114,"hash_ids":[],"tenant":"t"}"#, Format::Warmpath),
            (r#"{"type":"StartWriteCache","trigger_time_us":1}"#, Format::TairEvents),
            (r#"{"timestamp_us":1,"keys":[]}"#, Format::TairOptimizer),
            (r#"{"timestamp_ns":1,"keys":[],"type":"get"}"#, Format::TairOptimizer),
        ] {
            assert_eq!(Format::detect(line.as_bytes()), Ok(format), "{line}");
        }
        assert!(Format::detect(b"{}").unwrap_err().starts_with("a line of no known form"));
        assert!(Format::detect(b"[]").is_err());
    }

    #[test]
    fn a_name_reads_back_as_its_form() {
        for (format, name) in NAMES {
            assert_eq!((name.parse(), format.to_string().as_str()), (Ok(format), name));
        }
        assert!("csv".parse::<Format>().unwrap_err().contains("known: mooncake, bailian"));
    }
}

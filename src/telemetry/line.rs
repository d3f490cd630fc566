//! How the line of a request is written: as other lines are, for less than half of it. There is one for each request.

use std::fmt::{self, Debug};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::access::TARGET;
use crate::config::LogFormat;

/// Writes lines of requests itself, where they have no colours, and leaves all else to `others`.
#[derive(Debug)]
pub(super) struct Lines<F> {
    format: LogFormat,
    others: F,
}

impl<F> Lines<F> {
    /// Of this format, which `others` writes, too.
    pub(super) fn new(format: LogFormat, others: F) -> Self {
        Self { format, others }
    }
}

impl<S, N, F> FormatEvent<S, N> for Lines<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let (level, target) = (event.metadata().level(), event.metadata().target());
        if target != TARGET || writer.has_ansi_escapes() {
            return self.others.format_event(context, writer, event);
        }
        let mut fields = Fields { format: self.format, writer: writer.by_ref(), result: Ok(()) };
        match self.format {
            LogFormat::Text => {
                SystemTime.format_time(&mut fields.writer)?;
                write!(fields.writer, " {level:>5} {target}:")?;
                event.record(&mut fields);
                fields.result?;
                writer.write_char('\n')
            }
            LogFormat::Json => {
                fields.writer.write_str("{\"timestamp\":\"")?;
                SystemTime.format_time(&mut fields.writer)?;
                write!(fields.writer, "\",\"level\":\"{level}\"")?;
                event.record(&mut fields);
                fields.result?;
                writeln!(writer, ",\"target\":\"{target}\"}}")
            }
        }
    }
}

/// What there is to tell, one behind the other, as far as it could be written.
struct Fields<'w> {
    format: LogFormat,
    writer: Writer<'w>,
    result: fmt::Result,
}

impl Fields<'_> {
    fn tell(&mut self, field: &Field, value: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        let Self { format, writer, result } = self;
        let (before, behind) = match format {
            LogFormat::Text => (" ", "="),
            LogFormat::Json => (",\"", "\":"),
        };
        if result.is_ok() {
            let name = [before, field.name(), behind].into_iter().try_for_each(|part| writer.write_str(part));
            *result = name.and_then(|()| value(writer));
        }
    }
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let is_json = self.format == LogFormat::Json;
        self.tell(field, |writer| quoted(writer, value, is_json));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.tell(field, |writer| write!(writer, "{value}"));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        let is_nothing = self.format == LogFormat::Json && !value.is_finite();
        self.tell(field, |writer| if is_nothing { writer.write_str("null") } else { write!(writer, "{value:?}") });
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match self.format {
            LogFormat::Text => self.tell(field, |writer| write!(writer, "{value:?}")),
            LogFormat::Json => self.record_str(field, &format!("{value:?}")),
        }
    }
}

/// Nearly all that is told are names, of which no character needs to be escaped.
fn quoted(writer: &mut Writer<'_>, value: &str, is_json: bool) -> fmt::Result {
    if value.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\') {
        return ["\"", value, "\""].into_iter().try_for_each(|part| writer.write_str(part));
    }
    if is_json {
        return writer.write_str(&serde_json::to_string(value).map_err(|_| fmt::Error)?);
    }
    write!(writer, "{value:?}")
}

#[cfg(test)]
pub(super) mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::telemetry::layer;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Written {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    /// What is logged meanwhile, without colours.
    pub(in crate::telemetry) fn written(format: LogFormat, run: impl FnOnce()) -> String {
        let written = Written::default();
        let subscriber = tracing_subscriber::registry().with(layer(format, false, written.clone()));
        tracing::subscriber::with_default(subscriber, run);
        String::from_utf8(written.0.lock().unwrap().clone()).unwrap()
    }

    /// The same told as by a request and as by anything else, without their times and targets.
    fn both(format: LogFormat) -> [String; 2] {
        macro_rules! tell {
            ($target:expr) => {
                tracing::info!(target: $target, strange = "a \"name\"\\ of\n two\u{1b}[31m lines, ünd", plain = "w-1",
                    whom = Some("w"), none = None::<u64>, count = 7_u32, usize = 0_usize, cost = 0.25, whole = 2500.0,
                    tiny = 1e-9, large = 1e15, debug = ?[1, 2])
            };
        }
        let text = written(format, || {
            tell!(TARGET);
            tell!("other");
        });
        let lines: Vec<_> = text.lines().collect();
        [(lines[0], TARGET), (lines[1], "other")].map(|(line, target)| {
            let time = line.find("20").unwrap();
            let (before, behind) = (&line[..time], &line[time + "2026-11-25T03:16:02.032571Z".len()..]);
            format!("{before}{}", behind.replacen(target, "target", 1))
        })
    }

    #[test]
    fn a_request_is_written_as_all_else_is() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let [request, other] = both(format);
            assert!(request.contains("strange") && request.contains("debug"), "{request}");
            assert_eq!(request, other);
        }
    }

    #[test]
    fn what_is_no_number_is_none_in_json() {
        let told = written(LogFormat::Json, || tracing::info!(target: TARGET, cost = f64::INFINITY));
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!((&told["cost"], &told["target"]), (&serde_json::Value::Null, &TARGET.into()));
    }
}

//! `warmpath calibrate`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use warmpath_core::count::real_len;
use warmpath_simulator::{DecodePoint, Ms, PrefillPoint, Roofline, Timing};

use super::misuse::misuse;
use super::site::{TlsArgs, remedied_box};
use super::{number, runtime, say};
use crate::calibrate::{Measuring, measure};

/// The share of its hardware that an engine reaches, from one prefill and one decode; as text, or as what `--timing` of
/// simulated engines takes. Both points are given, or measured on a live engine that has nothing else to do.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["prefill", "url"])))]
#[command(after_help = AFTER, after_long_help = AFTER)]
pub struct CalibrateArgs {
    /// A cold prompt and how long it took to its first token, as TOKENS:MS, e.g. 2048:70.7.
    #[arg(long, value_name = "TOKENS:MS", requires = "decode")]
    prefill: Option<PrefillPoint>,
    /// A decode step and how long it took, as BATCHxCONTEXT:MS, e.g. 8x1024:8.9.
    #[arg(long, value_name = "BATCHxCONTEXT:MS", requires = "prefill")]
    decode: Option<DecodePoint>,
    /// Measure both on the engine here instead.
    #[arg(long, value_name = "URL", conflicts_with_all = ["prefill", "decode"])]
    url: Option<String>,
    /// The model and its hardware: `8b-h100`, `70b-h100x4` or `70b-h100x8`.
    #[arg(long, default_value = "8b-h100", value_parser = preset)]
    preset: Roofline,
    /// What every step costs besides, in ms; the preset's by default.
    #[arg(long, value_name = "MS", value_parser = number::not_negative)]
    overhead: Option<f64>,
    #[command(flatten)]
    tls: TlsArgs,
    /// The model to ask for; by default the first that the engine lists.
    #[arg(long)]
    model: Option<String>,
    /// What the engine wants as a bearer token.
    #[arg(long, env = "WARMPATH_ENGINE_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Tokens of the prompts that are measured.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    prefill_tokens: u32,
    /// Tokens of the prompts behind which decoding is measured.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    context: u32,
    /// How often each is measured; the middle one counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

const AFTER: &str = "\
--json: {\"preset\", \"mfu\", \"mbu\", \"overhead_ms\", \"timing\": what `--timing` takes, \"prefill\": {\"tokens\", \"ms\"},
\"decode\": {\"batch\", \"context\", \"ms\"}}.

Exit codes: 0 fitted, 1 the engine cannot be measured or its times fit nothing, 2 wrong use.";

impl CalibrateArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if self.url.is_none() && self.tls.is_given() {
            return Err(misuse("--ca, --cert and --key are for --url: nobody is asked here"));
        }
        let preset = match self.overhead {
            Some(overhead) => Roofline { overhead: Ms(overhead), ..self.preset },
            None => self.preset,
        };
        let (prefill, decode) = match (self.prefill, self.decode) {
            (Some(prefill), Some(decode)) => (prefill, decode),
            _ => self.measured()?,
        };
        let fitted = rounded(preset.fitted(&prefill, &decode)?);
        if self.json {
            say(format_args!("{:#}\n", document(&fitted, &prefill, &decode)))?;
        } else {
            say(format_args!("{}", text(&fitted, &prefill, &decode)))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn measured(&self) -> anyhow::Result<(PrefillPoint, DecodePoint)> {
        let url = self.url.as_deref().ok_or_else(|| misuse("--prefill and --decode, or --url, are needed"))?;
        let runtime = runtime()?;
        let site = {
            let _inside = runtime.enter();
            self.tls.site(url).context("--url")?
        };
        let measuring = Measuring {
            site: site.clone(),
            model: self.model.clone(),
            api_key: self.api_key.clone(),
            prefill_tokens: usize::try_from(self.prefill_tokens)?,
            context: usize::try_from(self.context)?,
            rounds: usize::try_from(self.rounds)?,
            patience: Duration::from_secs(300),
        };
        let points = runtime.block_on(measure(&measuring)).map_err(|error| remedied_box(error, &site));
        points.with_context(|| format!("{url} could not be measured"))
    }
}

fn preset(name: &str) -> Result<Roofline, String> {
    match format!("roofline:{name}").parse() {
        Ok(Timing::Roofline(preset)) => Ok(preset),
        Ok(other) => Err(format!("`{other}` is no roofline")),
        Err(error) => Err(error.to_string()),
    }
}

/// To four significant digits: what is measured is worth no more.
fn rounded(fitted: Roofline) -> Roofline {
    let four = |share: f64| format!("{share:.3e}").parse().unwrap_or(share);
    Roofline { mfu: four(fitted.mfu), mbu: four(fitted.mbu), ..fitted }
}

fn document(fitted: &Roofline, prefill: &PrefillPoint, decode: &DecodePoint) -> serde_json::Value {
    json!({
        "preset": fitted.name,
        "mfu": fitted.mfu,
        "mbu": fitted.mbu,
        "overhead_ms": fitted.overhead.0,
        "timing": Timing::Roofline(*fitted).to_string(),
        "prefill": {"tokens": prefill.tokens, "ms": prefill.time.0},
        "decode": {"batch": decode.batch, "context": decode.context, "ms": decode.time.0},
    })
}

fn text(fitted: &Roofline, prefill: &PrefillPoint, decode: &DecodePoint) -> String {
    let rate = 1e3 * real_len(prefill.tokens) / prefill.time.0;
    let beyond = if fitted.mfu > 1.0 || fitted.mbu > 1.0 {
        "more than the preset's hardware can do: is it another model, or fewer bits?\n"
    } else {
        ""
    };
    format!(
        "prefill  {} tokens in {:.2} ms, {rate:.0} tokens/s\ndecode   {} at {} tokens in {:.2} ms\nfitted   {}: mfu {}, \
         mbu {}, overhead {} ms\n{beyond}\n--timing {}\n",
        prefill.tokens,
        prefill.time.0,
        decode.batch,
        decode.context,
        decode.time.0,
        fitted.name,
        fitted.mfu,
        fitted.mbu,
        fitted.overhead.0,
        Timing::Roofline(*fitted),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_engine_is_told_in_four_digits_too_and_as_what_engines_take() {
        let (prefill, decode) = ("512:200000".parse().unwrap(), "1x1024:3000".parse().unwrap());
        let exact = Roofline::PRESETS[0].fitted(&prefill, &decode).unwrap();
        let fitted = rounded(exact);
        for (rounded, exact) in [(fitted.mfu, exact.mfu), (fitted.mbu, exact.mbu)] {
            assert!(rounded > 0.0 && (rounded / exact - 1.0).abs() < 5e-4, "{rounded} {exact}");
        }
        let timing = document(&fitted, &prefill, &decode)["timing"].as_str().unwrap().parse::<Timing>().unwrap();
        assert_eq!(timing, Timing::Roofline(fitted));
    }

    #[test]
    fn a_fit_is_told_as_text_and_as_what_engines_take() {
        let (prefill, decode) = ("2048:141.48".parse().unwrap(), "1x1024:8.45".parse().unwrap());
        let fitted = rounded(Roofline::PRESETS[0].fitted(&prefill, &decode).unwrap());
        let expected = "prefill  2048 tokens in 141.48 ms, 14476 tokens/s\ndecode   1 at 1024 tokens in 8.45 ms\nfitted   \
                        8b-h100: mfu 0.2464, mbu 0.7495, overhead 2 ms\n\n--timing roofline:8b-h100,mfu=0.2464,mbu=0.7495\n";
        assert_eq!(text(&fitted, &prefill, &decode), expected);
        let timing = document(&fitted, &prefill, &decode)["timing"].as_str().unwrap().parse::<Timing>().unwrap();
        assert_eq!(timing, Timing::Roofline(fitted));
    }
}

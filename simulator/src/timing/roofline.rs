//! Flops and bytes of a step against what the hardware does: the longer of the two, plus fixed costs.

use std::fmt;

use warmpath_core::count::real_len;
use warmpath_core::units::BlockSize;

use super::{Ms, StepLoad};

/// An H100 SXM in bf16: floating-point operations a second.
const H100_FLOPS: f64 = 989e12;
/// Its memory's bytes a second.
const H100_BYTES: f64 = 3.35e12;

/// A model on some hardware.
///
/// It keeps what a router must see: a cached prefix still costs attention; a long chunk slows everyone's decode; a decode
/// step of 1 to 64 requests lasts nearly as long, then memory makes it grow; reading the weights is the floor.
/// `mfu`, `mbu` and `overhead` are estimates until they are fitted to a real engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Its name, behind `roofline:`.
    pub name: &'static str,
    /// Parameters of the model.
    pub parameters: f64,
    /// Bytes of each parameter.
    pub parameter_bytes: f64,
    /// Layers.
    pub layers: f64,
    /// Query heads.
    pub query_heads: f64,
    /// Size of a head.
    pub head_size: f64,
    /// Bytes of KV cache a token, over all layers.
    pub kv_bytes: f64,
    /// Over how many GPUs the model is spread.
    pub tensor_parallel: f64,
    /// Floating-point operations a second that one GPU could do.
    pub gpu_flops: f64,
    /// Bytes a second that its memory could give.
    pub gpu_bytes: f64,
    /// Share of `gpu_flops` that is reached.
    pub mfu: f64,
    /// Share of `gpu_bytes` that is reached.
    pub mbu: f64,
    /// Of every step: launching kernels, sampling, scheduling.
    pub overhead: Ms,
    /// Of one all-reduce; each layer has two.
    pub all_reduce: Ms,
}

/// Its bytes.
const H100_MEMORY: f64 = 80e9;
/// Of these, what the largest step's activations, captured graphs and the runtime take: an estimate.
const H100_BESIDES: f64 = 5e9;

const LLAMA_8B: Roofline = Roofline {
    name: "8b-h100",
    parameters: 8.03e9,
    parameter_bytes: 2.0,
    layers: 32.0,
    query_heads: 32.0,
    head_size: 128.0,
    kv_bytes: 131_072.0,
    tensor_parallel: 1.0,
    gpu_flops: H100_FLOPS,
    gpu_bytes: H100_BYTES,
    mfu: 0.50,
    mbu: 0.75,
    overhead: Ms(2.0),
    all_reduce: Ms(0.0),
};

const LLAMA_70B_4: Roofline = Roofline {
    name: "70b-h100x4",
    parameters: 70.6e9,
    layers: 80.0,
    query_heads: 64.0,
    kv_bytes: 327_680.0,
    tensor_parallel: 4.0,
    mbu: 0.70,
    overhead: Ms(3.0),
    all_reduce: Ms(0.012),
    ..LLAMA_8B
};

const LLAMA_70B_8: Roofline =
    Roofline { name: "70b-h100x8", tensor_parallel: 8.0, mfu: 0.45, mbu: 0.65, all_reduce: Ms(0.015), ..LLAMA_70B_4 };

impl Roofline {
    /// The known ones, the default first.
    pub const PRESETS: [Self; 3] = [LLAMA_8B, LLAMA_70B_4, LLAMA_70B_8];

    /// How long a step lasts. A decode counts as one token that attends to its whole context.
    pub fn step(&self, load: &StepLoad) -> Ms {
        let Work { flops, bytes } = self.work(load);
        let compute = flops / (self.flops_at_most() * self.mfu);
        let memory = bytes / (self.bytes_at_most() * self.mbu);
        Ms(self.fixed().0 + 1000.0 * compute.max(memory))
    }

    /// Blocks of `block_size` tokens that the GPUs' memory has room for, of which the engine takes this share: what is left
    /// beside weights and activations. None where nothing is left.
    pub fn blocks(&self, share: f64, block_size: BlockSize) -> u32 {
        let taken = self.tensor_parallel * (H100_MEMORY * share - H100_BESIDES);
        let left = taken - self.parameters * self.parameter_bytes;
        let blocks = left / (self.kv_bytes * f64::from(block_size.get()));
        #[expect(clippy::as_conversions, reason = "rounded down, and a float that is out of range saturates")]
        let blocks = blocks as u32;
        blocks
    }

    /// The preset that a text names, with other constants where it gives any: `8b-h100,mfu=0.4,mbu=0.8,overhead=3`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(',');
        let name = parts.next()?;
        let mut roofline = Self::PRESETS.into_iter().find(|preset| preset.name == name)?;
        for part in parts {
            let (constant, value) = part.split_once('=')?;
            let value: f64 = value.trim().parse().ok().filter(|value: &f64| (0.0..=1e9).contains(value))?;
            let is_share = (1e-6..=1e6).contains(&value);
            match constant.trim() {
                "mfu" if is_share => roofline.mfu = value,
                "mbu" if is_share => roofline.mbu = value,
                "overhead" => roofline.overhead = Ms(value),
                _ => return None,
            }
        }
        Some(roofline)
    }

    /// Its preset as it is published.
    fn preset(&self) -> Option<Self> {
        Self::PRESETS.into_iter().find(|preset| preset.name == self.name)
    }

    pub(super) fn work(&self, load: &StepLoad) -> Work {
        let (mut attended, mut read) = (0.0, 0.0);
        for chunk in &load.chunks {
            let (tokens, context) = (real_len(chunk.tokens), real_len(chunk.context));
            attended += tokens * context + tokens * (tokens + 1.0) / 2.0;
            read += context + tokens;
        }
        for context in &load.decodes {
            attended += real_len(*context);
            read += real_len(*context);
        }
        let tokens = real_len(load.prefill_tokens() + load.decodes.len());
        let attention = 4.0 * self.layers * self.query_heads * self.head_size * attended;
        Work {
            flops: 2.0 * self.parameters * tokens + attention,
            bytes: self.parameters * self.parameter_bytes + self.kv_bytes * read,
        }
    }

    /// What a step costs whatever it does.
    pub(super) fn fixed(&self) -> Ms {
        Ms(self.overhead.0 + 2.0 * self.layers * self.all_reduce.0)
    }

    /// Floating-point operations a second that the hardware could do.
    pub(super) fn flops_at_most(&self) -> f64 {
        self.tensor_parallel * self.gpu_flops
    }

    /// Bytes a second that its memory could give.
    pub(super) fn bytes_at_most(&self) -> f64 {
        self.tensor_parallel * self.gpu_bytes
    }
}

/// What a step has to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) flops: f64,
    pub(super) bytes: f64,
}

impl fmt::Display for Roofline {
    /// Its name, and its constants where they are not its preset's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        let preset = self.preset().unwrap_or(Self::PRESETS[0]);
        let constants = [
            ("mfu", self.mfu, preset.mfu),
            ("mbu", self.mbu, preset.mbu),
            ("overhead", self.overhead.0, preset.overhead.0),
        ];
        for (name, value, _) in constants.into_iter().filter(|(_, value, preset)| value != preset) {
            write!(f, ",{name}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Chunk;
    use super::*;

    fn load(tokens: usize, context: usize, decodes: usize, decode_context: usize) -> StepLoad {
        let chunks = if tokens == 0 { vec![] } else { vec![Chunk { tokens, context }] };
        StepLoad { chunks, decodes: vec![decode_context; decodes], ..StepLoad::default() }
    }

    #[test]
    fn what_memory_is_left_beside_the_weights_is_the_cache() {
        let size = BlockSize::new(16).unwrap();
        let blocks = Roofline::PRESETS.map(|preset| preset.blocks(0.9, size));
        // About 51 of 80 GB in blocks of 2 MiB, and 127 of 320 GB in blocks of 5 MiB.
        assert_eq!(blocks, [24_290, 24_185, 75_302]);
        assert_eq!(Roofline::PRESETS[0].blocks(0.1, size), 0);
    }

    #[test]
    fn the_presets_give_their_reference_times() {
        let golden = [
            (load(512, 0, 0, 0), [18.77, 41.64, 25.80]),
            (load(2048, 0, 0, 0), [70.74, 153.90, 88.17]),
            (load(8192, 0, 0, 0), [303.63, 634.18, 354.99]),
            (load(8192, 32_768, 0, 0), [588.24, 989.94, 552.63]),
            (load(0, 0, 1, 1024), [8.45, 20.01, 13.52]),
            (load(0, 0, 64, 1024), [11.81, 22.26, 14.74]),
            (load(0, 0, 256, 2048), [35.74, 38.29, 23.37]),
            (load(2048, 0, 64, 1024), [72.89, 158.55, 90.75]),
        ];
        for (load, row) in golden {
            for (preset, ms) in Roofline::PRESETS.iter().zip(row) {
                assert_eq!((preset.step(&load).0 * 100.0).round() / 100.0, ms, "{} {load:?}", preset.name);
            }
        }
    }
}

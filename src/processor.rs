//! What the program asks of a processor: on x86-64 it is built for those since 2013 (`.cargo/config.toml`), and an older one
//! is told so instead of being given instructions that it does not know.

/// The processor lacks what the program was built for. Said whole, since to put a sentence together takes code that may not
/// run here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this processor is not of x86-64-v3 (AVX2, BMI1, BMI2, FMA, MOVBE, F16C, ABM), for which the program was built; \
     remedy: run it on one since 2013, or build it here with RUSTFLAGS=\"-C target-cpu=native\""
)]
pub struct Lacking;

/// Whether the program runs here. To be asked before all else.
///
/// # Errors
/// Something is missing.
#[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
pub fn suffices() -> Result<(), Lacking> {
    if x86_64::features().iter().all(|(_, is_there)| *is_there) { Ok(()) } else { Err(Lacking) }
}

/// Whether the program runs here: it was built for every processor of its kind.
///
/// # Errors
/// None.
#[cfg(not(all(target_arch = "x86_64", target_feature = "avx2")))]
pub fn suffices() -> Result<(), Lacking> {
    Ok(())
}

#[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
mod x86_64 {
    use std::arch::x86_64::__cpuid;

    /// What x86-64-v3 has and its forerunners lack, and whether it is there. `is_x86_feature_detected!` would say of it what
    /// the compiler was told.
    pub(super) fn features() -> [(&'static str, bool); 7] {
        const NEWER: u32 = 7;
        const OF_AMD: u32 = 0x8000_0001;
        // A leaf that there is not repeats another one.
        let newer = if __cpuid(0).eax < NEWER { 0 } else { __cpuid(NEWER).ebx };
        let amd = if __cpuid(0x8000_0000).eax < OF_AMD { 0 } else { __cpuid(OF_AMD).ecx };
        let older = __cpuid(1).ecx;
        let has = |register: u32, bit: u32| register >> bit & 1 == 1;
        [
            ("AVX2", has(newer, 5)),
            ("BMI1", has(newer, 3)),
            ("BMI2", has(newer, 8)),
            ("FMA", has(older, 12)),
            ("MOVBE", has(older, 22)),
            ("F16C", has(older, 29)),
            ("ABM", has(amd, 5)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_the_tests_suffices() {
        assert_eq!(suffices(), Ok(()));
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", target_feature = "avx2", target_os = "linux"))]
    fn features_are_those_that_the_system_tells() {
        let told = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags: Vec<&str> =
            told.lines().find(|line| line.starts_with("flags")).unwrap().split_whitespace().collect();
        for (name, is_there) in x86_64::features() {
            assert_eq!(flags.contains(&name.to_lowercase().as_str()), is_there, "{name}");
        }
    }
}

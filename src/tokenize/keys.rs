//! Names for texts: hashes of 128 bits under a secret of this process, so that nobody can make two texts that share one.

use rand::Rng as _;
use xxhash_rust::xxh3::xxh3_128_with_secret;

/// Bytes of the secret, as many as the hash reads.
const SECRET_BYTES: usize = 192;

/// A secret.
pub(super) struct Keys([u8; SECRET_BYTES]);

impl Keys {
    /// A new secret.
    pub(super) fn new() -> Self {
        let mut secret = [0; SECRET_BYTES];
        rand::rng().fill_bytes(&mut secret);
        Self(secret)
    }

    /// The name of a text. O(bytes), 20 GB/s.
    pub(super) fn of(&self, text: &[u8]) -> u128 {
        xxh3_128_with_secret(text, &self.0)
    }

    /// The name of what `next` names behind what `before` names.
    pub(super) fn join(&self, before: u128, next: u128) -> u128 {
        let mut both = [0; 32];
        both[..16].copy_from_slice(&before.to_le_bytes());
        both[16..].copy_from_slice(&next.to_le_bytes());
        self.of(&both)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_depend_on_order_and_on_the_secret() {
        let (keys, others) = (Keys::new(), Keys::new());
        assert_eq!(keys.of(b"a"), keys.of(b"a"));
        assert_ne!(keys.of(b"a"), others.of(b"a"));
        assert_ne!(keys.join(1, 2), keys.join(2, 1));
    }
}

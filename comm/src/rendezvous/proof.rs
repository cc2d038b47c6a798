//! Ranks prove to each other that they know the job's secret, without ever sending it.
//!
//! Both sides give a random number; each answers with HMAC-SHA256, keyed by the secret, over its role, what the connection is
//! for, both numbers and everything it claims. Whoever listens in learns nothing that could be used again; role and purpose
//! keep an answer from being played back to the other side or to another door.

use crate::error::{CommError, Result};
use crate::launcher_env::SecretSource;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use std::os::unix::fs::MetadataExt as _;

/// A random number of one side of a handshake.
pub type Nonce = [u8; 32];

/// A proof.
pub type Tag = [u8; 32];

/// What a job's ranks know and nobody else does.
#[derive(Clone)]
pub struct Secret {
    key: [u8; 32],
    is_real: bool,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Secret(real: {})", self.is_real)
    }
}

impl Secret {
    /// Reads the secret from where the launcher has put it. Without one, the key follows from public words: it keeps jobs
    /// apart, but proves nothing.
    ///
    /// # Errors
    /// A file that cannot be read, is empty, or that others may read.
    pub fn load(source: &SecretSource, job: &str) -> Result<Self> {
        let (bytes, is_real) = match source {
            SecretSource::None => (format!("no secret, job {job}").into_bytes(), false),
            SecretSource::Value(value) => (value.clone().into_bytes(), true),
            SecretSource::File(path) => (read_private(path)?, true),
        };
        Ok(Self { key: Sha256::digest(&bytes).into(), is_real })
    }

    /// Whether it was a secret at all.
    pub fn is_real(&self) -> bool {
        self.is_real
    }

    /// Proves knowledge of the secret to whoever has given one of the numbers in `parts`.
    pub fn tag(&self, role: Role, parts: &[&[u8]]) -> Tag {
        self.mac(role, parts).finalize().into_bytes().into()
    }

    /// Whether `tag` is the proof over the same words, in a time that does not depend on where it differs.
    pub fn accepts(&self, role: Role, parts: &[&[u8]], tag: &[u8]) -> bool {
        self.mac(role, parts).verify_slice(tag).is_ok()
    }

    fn mac(&self, role: Role, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of any length");
        mac.update(&[role as u8]);
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

/// Which side proves something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// The side that has connected.
    Guest = 1,
    /// The side that has listened.
    Host = 2,
}

/// A random number of this handshake.
///
/// # Errors
/// When the system has no randomness.
pub fn nonce() -> Result<Nonce> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| CommError::System {
        what: "asking the system for random bytes".into(),
        reason: error.to_string(),
    })?;
    Ok(bytes)
}

fn read_private(path: &str) -> Result<Vec<u8>> {
    let setting = || format!("HEADLONG_SECRET_FILE={path}");
    let refuse = |reason: String| CommError::Setting { setting: setting(), reason };
    let unreadable = |error: std::io::Error| refuse(format!("cannot be read: {error}"));
    let mode = std::fs::metadata(path).map_err(unreadable)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(refuse(format!("has mode {mode:o}, so others can read it: chmod 600 {path}")));
    }
    let mut bytes = std::fs::read(path).map_err(unreadable)?;
    while bytes.last().is_some_and(u8::is_ascii_whitespace) {
        bytes.pop();
    }
    if bytes.is_empty() {
        return Err(refuse("is empty".into()));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn secret(text: &str) -> Secret {
        Secret::load(&SecretSource::Value(text.into()), "job").unwrap()
    }

    #[test]
    fn a_proof_fits_one_secret_one_role_and_one_set_of_words() {
        let tag = secret("a").tag(Role::Guest, &[b"one", b"two"]);
        assert!(secret("a").accepts(Role::Guest, &[b"one", b"two"], &tag));
        assert!(!secret("b").accepts(Role::Guest, &[b"one", b"two"], &tag));
        assert!(!secret("a").accepts(Role::Host, &[b"one", b"two"], &tag));
        assert!(!secret("a").accepts(Role::Guest, &[b"onet", b"wo"], &tag), "lengths are part of the words");
        assert!(!secret("a").accepts(Role::Guest, &[b"one", b"two"], &tag[..31]));
    }

    #[test]
    fn a_secret_file_is_private_and_its_last_newline_does_not_count() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap().to_string();
        let load = || Secret::load(&SecretSource::File(path.clone()), "job");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(load().unwrap_err().to_string().contains("is empty"));
        std::fs::write(&path, "hidden\n").unwrap();
        assert_eq!(load().unwrap().key, secret("hidden").key);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let text = load().unwrap_err().to_string();
        assert!(text.contains("mode 640") && !text.contains("hidden"), "{text}");
    }

    #[test]
    fn without_a_secret_jobs_are_still_kept_apart() {
        let none = |job| Secret::load(&SecretSource::None, job).unwrap();
        assert_ne!(none("a").key, none("b").key);
        assert!(!none("a").is_real());
    }
}

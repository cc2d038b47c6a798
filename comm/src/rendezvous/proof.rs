//! A job's secret: where it comes from, and what is asked of it.
//!
//! Ranks prove to each other that they know it without ever sending it: it is the pre-shared key of
//! the handshake of each connection ([`handshake`](super::handshake)).

use crate::error::{CommError, Result};
use crate::launcher_env::SecretSource;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Bytes of the shortest secret that is taken: a process that answers as rank 0 can try out shorter
/// ones at leisure.
pub const LEAST_SECRET_BYTES: usize = 16;
const MOST_SECRET_BYTES: u64 = 64 << 10;

/// A random number of one side of a handshake.
pub type Nonce = [u8; 32];

/// A job's secret.
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
    /// Reads the secret from where the launcher has put it; white space around it does not count.
    /// Without one, the key follows from public words: it keeps jobs apart, but proves nothing.
    ///
    /// # Errors
    /// A file that cannot be read or that others may read or change; a secret of less than
    /// [`LEAST_SECRET_BYTES`].
    pub fn load(source: &SecretSource, job: &str) -> Result<Self> {
        let (setting, bytes) = match source {
            SecretSource::None => {
                let key = Sha256::digest(format!("no secret, job {job}")).into();
                return Ok(Self { key, is_real: false });
            }
            SecretSource::Value(value) => ("HEADLONG_SECRET".to_owned(), value.clone()),
            SecretSource::File(path) => {
                let setting = format!("HEADLONG_SECRET_FILE={}", path.display());
                let read = read_private(path);
                let bytes =
                    read.map_err(|reason| CommError::Setting { setting: setting.clone(), reason })?;
                (setting, bytes)
            }
        };
        let bytes = bytes.trim_ascii();
        if bytes.len() < LEAST_SECRET_BYTES {
            let found = match bytes.len() {
                0 => "is empty".to_owned(),
                1 => "has 1 byte".to_owned(),
                found => format!("has {found} bytes"),
            };
            let reason = format!(
                "the secret {found}, expected at least {LEAST_SECRET_BYTES} bytes: \
                 `head -c 32 /dev/urandom | base64` makes one"
            );
            return Err(CommError::Setting { setting, reason });
        }
        Ok(Self { key: Sha256::digest(bytes).into(), is_real: true })
    }

    /// Whether it was a secret at all.
    pub fn is_real(&self) -> bool {
        self.is_real
    }

    /// One that is a key already: what ranks of a job have told each other.
    pub fn of_key(key: [u8; 32]) -> Self {
        Self { key, is_real: true }
    }

    /// The pre-shared key of handshakes.
    pub(super) fn key(&self) -> &[u8; 32] {
        &self.key
    }
}

/// A random number of this handshake.
pub fn nonce() -> Result<Nonce> {
    let mut bytes = [0; 32];
    crate::system::fill_random(&mut bytes)
        .map_err(|error| CommError::system("asking the system for random bytes", error))?;
    Ok(bytes)
}

/// A file's bytes, or why it must not be used. Links are followed, as mounted secrets are links:
/// what counts is who owns the file that they lead to, and who may read it. It is looked at once it
/// is open, so that it is not exchanged in between.
fn read_private(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    // Note: a pipe without a writer would keep an open without this flag waiting.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    let facts = file.metadata().map_err(unreadable)?;
    if !facts.is_file() {
        let what = if facts.is_dir() { "a folder" } else { "no regular file" };
        return Err(format!("is {what}, expected a file that holds the secret"));
    }
    let (mode, owner, user) =
        (facts.mode() & 0o777, facts.uid(), rustix::process::geteuid().as_raw());
    if mode & 0o077 != 0 {
        return Err(format!(
            "has mode {mode:o}, so others than its owner may use it: chmod 600 {}",
            path.display()
        ));
    }
    if owner != user && owner != 0 {
        return Err(format!(
            "belongs to user {owner}, who may change it; expected user {user}{}: copy it, and \
             chmod 600 the copy",
            if user == 0 { "" } else { " or root" }
        ));
    }
    if facts.len() > MOST_SECRET_BYTES {
        return Err(format!("has {} bytes, expected at most {MOST_SECRET_BYTES}", facts.len()));
    }
    let mut bytes = Vec::new();
    std::io::copy(&mut file.take(MOST_SECRET_BYTES), &mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn secret(text: &str) -> Secret {
        Secret::load(&SecretSource::Value(format!("{text}, and sixteen bytes").into_bytes()), "job")
            .unwrap()
    }

    fn refusal(source: &SecretSource) -> String {
        Secret::load(source, "job").unwrap_err().to_string()
    }

    #[test]
    fn a_secret_is_bytes_and_not_too_few_of_them() {
        let raw: Vec<u8> = (200..232).collect();
        assert!(Secret::load(&SecretSource::Value(raw), "job").unwrap().is_real());
        for (short, words) in
            [(&b"x"[..], "has 1 byte, expected at least 16 bytes"), (b" fifteen bytes.. \n", "15")]
        {
            let text = refusal(&SecretSource::Value(short.into()));
            assert!(text.starts_with("HEADLONG_SECRET: ") && text.contains(words), "{text}");
            assert!(!text.contains("fifteen"), "no secret is printed: {text}");
        }
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_secret_file_is_private_and_space_around_the_secret_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let load = || Secret::load(&SecretSource::File(path.clone()), "job");
        std::fs::write(&path, " \n").unwrap();
        set_mode(&path, 0o600);
        let text = load().unwrap_err().to_string();
        assert!(text.contains("secret is empty, expected at least 16 bytes: `head -c"), "{text}");
        std::fs::write(&path, "hidden, and sixteen bytes\n").unwrap();
        assert_eq!(load().unwrap().key, secret("hidden").key);
        for mode in [0o640, 0o604, 0o620, 0o666] {
            set_mode(&path, mode);
            let text = load().unwrap_err().to_string();
            assert!(text.contains(&format!("mode {mode:o}")) && !text.contains("hidden"), "{text}");
        }
        set_mode(&path, 0o400);
        // Kubernetes mounts secrets as links.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Secret::load(&SecretSource::File(link), "job").is_ok());
    }

    #[test]
    fn what_is_no_file_of_this_user_is_named_for_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let text = refusal(&SecretSource::File(folder.path().into()));
        assert!(text.contains("is a folder") && !text.contains("chmod"), "{text}");
        assert!(refusal(&SecretSource::File("/dev/null".into())).contains("no regular file"));
        assert!(
            refusal(&SecretSource::File(folder.path().join("none"))).contains("cannot be read")
        );
        let (pipe, theirs) = (folder.path().join("pipe"), folder.path().join("theirs"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert!(refusal(&SecretSource::File(pipe)).contains("no regular file"));
        std::fs::write(&theirs, "a secret of another user").unwrap();
        set_mode(&theirs, 0o600);
        // To give a file away takes a right that a test may not have.
        if std::os::unix::fs::chown(&theirs, Some(4321), None).is_ok() {
            let text = refusal(&SecretSource::File(theirs));
            assert!(text.contains("belongs to user 4321"), "{text}");
        }
    }

    #[test]
    fn without_a_secret_jobs_are_still_kept_apart() {
        let none = |job| Secret::load(&SecretSource::None, job).unwrap();
        assert_ne!(none("a").key, none("b").key);
        assert!(!none("a").is_real());
    }
}

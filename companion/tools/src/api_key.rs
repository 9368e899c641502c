//! `penstock api-key`: makes the API key of a tenant, or hashes one that exists, for the file of `identity.api_keys`.

use std::fmt::Write as _;
use std::io::{self, Read as _};

use penstock_config::DIGEST_PREFIX;
use penstock_errors::Failure;
use penstock_wire::limits::{API_KEY_BYTES_MAX, NAME_BYTES_MAX};
use rand::TryRng as _;
use rand::rngs::{SysError, SysRng};
use sha2::{Digest as _, Sha256};

const RANDOM_BYTES: usize = 32;
/// What a key begins with, so that a person and a scanner for leaked secrets recognize it.
const KEY_PREFIX: &str = "pk-";
/// A shorter key can be guessed from its digest.
const KEY_BYTES_MIN: usize = 20;
/// Words that YAML reads as something else than a text.
const YAML_WORDS: [&str; 8] = ["true", "false", "yes", "no", "on", "off", "null", "y"];

/// Arguments of `penstock api-key`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The tenant of the key, 1 to 256 bytes.
    #[arg(value_name = "TENANT", value_parser = tenant)]
    tenant: String,
    /// Read a key that exists from standard input, and print only the line for the file.
    #[arg(long)]
    stdin: bool,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system has no random numbers.
    #[error("no random numbers from the operating system: {0}")]
    Random(SysError),
    /// Standard input can't be read.
    #[error("standard input: {0}")]
    Read(io::Error),
    /// The key can't be used. The message doesn't show it.
    #[error(
        "standard input: a key has {KEY_BYTES_MIN} to {API_KEY_BYTES_MAX} visible ASCII characters and no spaces; a shorter key \
         can be guessed from its digest"
    )]
    Key,
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        matches!(self, Self::Key)
    }
}

/// Makes or reads the key, and returns the text to print.
///
/// # Errors
/// There is no key that can be used.
pub fn run(args: &Args) -> Result<String, Error> {
    if args.stdin {
        let mut text = String::new();
        let most = u64::try_from(2 * API_KEY_BYTES_MAX).unwrap_or(u64::MAX);
        io::stdin().take(most).read_to_string(&mut text).map_err(Error::Read)?;
        return Ok(line(&args.tenant, check(text.trim())?) + "\n");
    }
    let mut random = [0; RANDOM_BYTES];
    SysRng.try_fill_bytes(&mut random).map_err(Error::Random)?;
    let key = format!("{KEY_PREFIX}{}", hex(&random));
    Ok(format!(
        "# The key, for the client. It is printed only now:\n{key}\n\
         # The line for the file of identity.api_keys; a further key of the same tenant goes into the same list:\n{}\n",
        line(&args.tenant, &key)
    ))
}

fn check(key: &str) -> Result<&str, Error> {
    let is_visible = key.bytes().all(|byte| byte.is_ascii_graphic());
    let fits = (KEY_BYTES_MIN..=API_KEY_BYTES_MAX).contains(&key.len());
    if is_visible && fits { Ok(key) } else { Err(Error::Key) }
}

/// The tenant's line in the file.
fn line(tenant: &str, key: &str) -> String {
    let digest = Sha256::digest(key);
    format!("{}: [\"{DIGEST_PREFIX}{}\"]", yaml(tenant), hex(&digest))
}

/// A name in YAML; JSON's strings are YAML.
fn yaml(name: &str) -> String {
    let is_plain = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && !YAML_WORDS.iter().any(|word| name.eq_ignore_ascii_case(word));
    if is_plain { name.to_owned() } else { serde_json::Value::from(name).to_string() }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn tenant(name: &str) -> Result<String, String> {
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control) {
        Ok(name.to_owned())
    } else {
        Err(format!("a tenant's name has 1 to {NAME_BYTES_MAX} bytes and no control characters"))
    }
}

#[cfg(test)]
mod tests {
    use penstock_config::ApiKeyTable;

    use super::*;

    fn made(tenant: &str) -> (String, String) {
        let args = Args { tenant: tenant.into(), stdin: false };
        let text = run(&args).expect("a key");
        let mut lines = text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned);
        (lines.next().expect("a key"), lines.next().expect("a line"))
    }

    #[test]
    fn a_key_is_random_and_its_line_is_valid_in_the_file() {
        for tenant in ["acme", "42", "True", "a: b", "\"q\" #1", "späti"] {
            let (key, line) = made(tenant);
            assert_eq!(key.len(), KEY_PREFIX.len() + 2 * RANDOM_BYTES);
            assert_ne!(key, made(tenant).0);
            assert!(!line.contains(&key), "{line}");
            let table = ApiKeyTable::parse(&line, "k.yaml").expect(&line);
            let expected: [u8; 32] = Sha256::digest(&key).into();
            assert_eq!(table.iter().collect::<Vec<_>>(), [(&expected, tenant)]);
        }
    }

    #[test]
    fn a_digest_is_that_of_the_standard() {
        // FIPS 180-2, appendix B.1, without the tenant.
        assert_eq!(
            line("acme", "abc"),
            "acme: [\"sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"]"
        );
    }

    #[test]
    fn keys_that_can_be_guessed_or_not_sent_are_refused() {
        let long = "k".repeat(API_KEY_BYTES_MAX);
        for key in ["sk-0123456789abcdefg", &long] {
            assert_eq!(check(key).expect("valid"), key);
        }
        for key in ["", "sk-1234", "sk-0123456789abc defg", "sk-0123456789abcdefgä", &format!("{long}k")] {
            let message = check(key).expect_err(key).to_string();
            assert!(key.is_empty() || !message.contains(key), "{message}");
        }
    }
}

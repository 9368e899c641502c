//! Where a companion is asked for its /status: an address and a token, checked before anything is asked.

use std::path::PathBuf;
use std::time::Duration;

use penstock_errors::cause;
use reqwest::header::AUTHORIZATION;
use reqwest::{StatusCode, Url};

/// Who answers no sooner counts as not answering.
const PATIENCE: Duration = Duration::from_secs(5);
/// Of a document that is taken.
const BYTES_MAX: usize = 64 << 20;

/// Where and as whom.
#[derive(Clone, Debug, clap::Args)]
// Both commands that take these have a group named as this would be.
#[group(skip)]
pub struct Args {
    /// The companion's HTTP side: `http://HOST:PORT`, or `unix:/PATH`; its `listen.http`
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9191")]
    pub url: String,
    /// File with the admin token (admin.token_file), which shows flows whose identity comes from bodies
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Why there is no document.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not an address.
    #[error("--url {0}: {1}; write http://HOST:PORT or unix:/PATH")]
    Url(String, String),
    /// Not a token.
    #[error("--token-file {}: {why}", path.display())]
    Token {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Nobody is there.
    #[error(
        "nobody answers at {url}: {why}. Is `penstock serve`, `up` or `demo` running? They listen at listen.http, and `up` and `demo` print it as `dashboard`; name it with --url"
    )]
    Away {
        /// Where.
        url: String,
        /// Why.
        why: String,
    },
    /// Somebody is, and it isn't a companion, or it refuses.
    #[error("{url} answered {why}. Is that a companion? It listens at listen.http")]
    Answer {
        /// Where.
        url: String,
        /// What.
        why: String,
    },
    /// The terminal.
    #[error("terminal: {0}")]
    Terminal(#[from] std::io::Error),
}

impl Error {
    /// What the process exits with.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Url(..) | Self::Token { .. } => 2,
            Self::Away { .. } | Self::Answer { .. } | Self::Terminal(_) => 1,
        }
    }
}

/// A companion to ask.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    client: reqwest::Client,
    status: Url,
    /// As the user wrote it.
    url: String,
    token: Option<String>,
}

impl Source {
    /// From what the user said.
    ///
    /// # Errors
    /// When that is no address, or the token can't be read.
    pub(crate) fn new(args: &Args) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Url(args.url.clone(), why.into());
        let builder = reqwest::Client::builder().no_proxy().timeout(PATIENCE);
        let (builder, base) = match args.url.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => (builder.unix_socket(path), "http://localhost"),
            Some(_) => return Err(wrong("a unix socket is named by its whole path")),
            None => (builder, args.url.trim_end_matches('/')),
        };
        if base.starts_with("https:") {
            return Err(wrong(
                "the companion's HTTP side speaks no TLS; reach it by a tunnel",
            ));
        }
        if !base.starts_with("http://") {
            return Err(wrong("that is no http:// address"));
        }
        let status = Url::parse(&format!("{base}/status")).map_err(|why| wrong(&why.to_string()))?;
        Ok(Self {
            client: builder.build().map_err(|why| wrong(&why.to_string()))?,
            status,
            url: args.url.clone(),
            token: args.token_file.clone().map(token).transpose()?,
        })
    }

    /// The document of /status, as text.
    ///
    /// # Errors
    /// When nobody answers, or with something else.
    pub(crate) async fn status(&self) -> Result<String, Error> {
        let mut request = self.client.get(self.status.clone());
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let mut answer = request.send().await.map_err(|why| self.away(&why))?;
        let code = answer.status();
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|why| self.away(&why))? {
            if body.len() + chunk.len() > BYTES_MAX {
                return Err(self.answered(&"more than a /status ever is"));
            }
            body.extend_from_slice(&chunk);
        }
        let text = String::from_utf8(body).map_err(|_| self.answered(&"what is no text"))?;
        if code == StatusCode::OK {
            Ok(text)
        } else {
            let first = text.lines().next().unwrap_or_default();
            Err(self.answered(&format!("{code}: {first}")))
        }
    }

    /// Somebody answered this, and it isn't what was asked for.
    pub(super) fn answered(&self, what: &dyn std::fmt::Display) -> Error {
        Error::Answer {
            url: self.url.clone(),
            why: what.to_string(),
        }
    }

    fn away(&self, why: &reqwest::Error) -> Error {
        Error::Away {
            url: self.url.clone(),
            why: cause::root(why),
        }
    }
}

fn token(path: PathBuf) -> Result<String, Error> {
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim().bytes().all(|byte| byte.is_ascii_graphic()) && !text.trim().is_empty() => {
            Ok(text.trim().to_owned())
        }
        Ok(_) => Err(Error::Token {
            path,
            why: "it holds no token".into(),
        }),
        Err(why) => Err(Error::Token {
            path,
            why: why.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(url: &str) -> Result<Source, Error> {
        Source::new(&Args {
            url: url.into(),
            token_file: None,
        })
    }

    #[test]
    fn addresses_are_taken_as_people_write_them() {
        for (url, status) in [
            ("http://127.0.0.1:9191", "http://127.0.0.1:9191/status"),
            ("http://127.0.0.1:9191/", "http://127.0.0.1:9191/status"),
            ("http://[::1]:9191", "http://[::1]:9191/status"),
            ("unix:/run/penstock.sock", "http://localhost/status"),
        ] {
            assert_eq!(source(url).expect(url).status.as_str(), status, "{url}");
        }
    }

    #[test]
    fn a_wrong_address_is_bad_usage_and_says_what_is_right() {
        for url in [
            "127.0.0.1:9191",
            "https://h:1",
            "ftp://h",
            "unix:p",
            "http://",
            "http://h:99999",
        ] {
            let error = source(url).expect_err(url);
            assert_eq!(error.exit_code(), 2, "{url}");
            assert!(error.to_string().contains("http://HOST:PORT"), "{error}");
        }
    }

    #[tokio::test]
    async fn nobody_there_is_said_with_what_to_do() {
        // A port that is held, and nobody listens on.
        let held = tokio::net::TcpSocket::new_v4().expect("a socket");
        held.bind("127.0.0.1:0".parse().expect("an address"))
            .expect("bound");
        let port = held.local_addr().expect("an address").port();
        let missing = std::env::temp_dir().join("penstock-nobody.sock");
        for url in [
            format!("http://127.0.0.1:{port}"),
            format!("unix:{}", missing.display()),
        ] {
            let error = source(&url).expect("valid").status().await.expect_err(&url);
            assert_eq!(error.exit_code(), 1);
            let text = error.to_string();
            assert!(text.contains(&url) && text.contains("penstock serve"), "{text}");
        }
    }

    #[test]
    fn a_token_is_one_word_in_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let with = |path: PathBuf| {
            Source::new(&Args {
                url: "http://127.0.0.1:1".into(),
                token_file: Some(path),
            })
        };
        assert_eq!(with(path.clone()).expect_err("missing").exit_code(), 2);
        std::fs::write(&path, "two words\n").expect("written");
        assert_eq!(with(path.clone()).expect_err("two").exit_code(), 2);
        std::fs::write(&path, "a-long-secret\n").expect("written");
        assert_eq!(with(path).expect("one").token.as_deref(), Some("a-long-secret"));
    }
}

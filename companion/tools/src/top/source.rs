//! The companion whose /status is shown: its address and the admin token.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use penstock_config::{Address, Environment, http_address};
use penstock_errors::Failure;
use penstock_errors::root_cause;
use reqwest::header::AUTHORIZATION;
use reqwest::{StatusCode, Url};

/// A request that takes longer fails.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest accepted document.
const BYTES_MAX: usize = 64 << 20;

/// The companion's address and the admin token.
#[derive(Clone, Debug, clap::Args)]
// Without `skip`, clap would give both commands' argument groups the same name.
#[group(skip)]
pub struct Args {
    /// Address of the companion's HTTP API: `http://HOST:PORT` or `unix:/PATH`. Default: listen.http of --config, or of the
    /// environment (PENSTOCK_LISTEN__HTTP), or else http://127.0.0.1:9191
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    pub url: Option<String>,
    /// The companion's configuration file, whose listen.http is the address
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// File with the admin token (admin.token_file); with it, flows whose identity comes from bodies are shown
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Why /status can't be shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is invalid.
    #[error("--url {0}: {1}; write http://HOST:PORT or unix:/PATH")]
    Url(String, String),
    /// The configuration, from which the address is read, is invalid.
    #[error(transparent)]
    Config(#[from] penstock_config::Error),
    /// The configured port is only known to the companion.
    #[error(
        "listen.http is {0}, so the companion takes any free port; pass the address that it logs with --url"
    )]
    AnyPort(std::net::SocketAddr),
    /// The token file can't be used.
    #[error("--token-file {}: {why}", path.display())]
    Token {
        /// The token file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The companion can't be reached.
    #[error(
        "no answer from {url}: {why}. Check that `penstock serve`, `up` or `demo` is running, and pass its address with --url (listen.http; `up` and `demo` print it as `dashboard`)"
    )]
    Unreachable {
        /// The address as given.
        url: String,
        /// The reason.
        why: String,
    },
    /// The answer is not a /status document.
    #[error("{url} answered {why}. Check that --url is the companion's listen.http")]
    Answer {
        /// The address as given.
        url: String,
        /// The answer.
        why: String,
    },
    /// The terminal or the standard output failed.
    #[error("terminal: {0}")]
    Terminal(#[from] std::io::Error),
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        matches!(self, Self::Url(..) | Self::Config(_) | Self::AnyPort(_) | Self::Token { .. })
    }
}

/// The companion whose /status is requested.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    client: reqwest::Client,
    status: Url,
    /// The address as given.
    url: String,
    token: Option<String>,
}

impl Source {
    /// Checks the arguments and reads the token.
    ///
    /// # Errors
    /// The address is invalid, or the token can't be read.
    pub(crate) fn new(args: &Args, environment: &Environment) -> Result<Self, Error> {
        let url = match &args.url {
            Some(url) => url.clone(),
            None => url_of(http_address(args.config.as_deref(), environment)?)?,
        };
        let invalid = |why: &str| Error::Url(url.clone(), why.into());
        let builder = reqwest::Client::builder().no_proxy().timeout(TIMEOUT);
        let (builder, base) = match url.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => (builder.unix_socket(path), "http://localhost"),
            Some(_) => return Err(invalid("the path of a unix socket must be absolute")),
            None => (builder, url.as_str()),
        };
        let mut status = Url::parse(base).map_err(|error| invalid(&error.to_string()))?;
        match status.scheme() {
            "http" => {}
            "https" => {
                return Err(invalid("the companion's HTTP API has no TLS; use a tunnel instead"));
            }
            _ => return Err(invalid("the address must start with http://")),
        }
        let path = format!("{}/status", status.path().trim_end_matches('/'));
        status.set_path(&path);
        Ok(Self {
            client: builder.build().map_err(|error| invalid(&error.to_string()))?,
            status,
            url: url.clone(),
            token: args.token_file.clone().map(token).transpose()?,
        })
    }

    /// Requests /status and returns the document's text.
    ///
    /// # Errors
    /// The companion doesn't answer, or the answer isn't a text with status 200.
    pub(crate) async fn status(&self) -> Result<String, Error> {
        let mut request = self.client.get(self.status.clone());
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let mut answer = request.send().await.map_err(|error| self.unreachable(&error))?;
        let code = answer.status();
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| self.unreachable(&error))? {
            if body.len() + chunk.len() > BYTES_MAX {
                return Err(self.unexpected_answer(&"with more than 64 MiB"));
            }
            body.extend_from_slice(&chunk);
        }
        let text =
            String::from_utf8(body).map_err(|_| self.unexpected_answer(&"with something other than text"))?;
        if code == StatusCode::OK {
            Ok(text)
        } else {
            let first = text.lines().next().unwrap_or_default();
            Err(self.unexpected_answer(&format!("{code}: {first}")))
        }
    }

    /// The companion, or another process, answered something unexpected.
    pub(super) fn unexpected_answer(&self, answer: &dyn std::fmt::Display) -> Error {
        Error::Answer { url: self.url.clone(), why: answer.to_string() }
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        Error::Unreachable { url: self.url.clone(), why: root_cause(error) }
    }
}

/// Where a companion that listens on this address answers. One that listens on all addresses answers on loopback, too.
fn url_of(address: Address) -> Result<String, Error> {
    let mut address = match address {
        Address::Unix(path) => return Ok(format!("unix:{}", path.display())),
        Address::Tcp(address) => address,
    };
    if address.port() == 0 {
        return Err(Error::AnyPort(address));
    }
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    Ok(format!("http://{address}"))
}

fn token(path: PathBuf) -> Result<String, Error> {
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim().bytes().all(|byte| byte.is_ascii_graphic()) && !text.trim().is_empty() => {
            Ok(text.trim().to_owned())
        }
        Ok(_) => Err(Error::Token { path, why: "the file holds no token".into() }),
        Err(error) => Err(Error::Token { path, why: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(url: Option<&str>) -> Args {
        Args { url: url.map(str::to_owned), config: None, token_file: None }
    }

    fn source(url: &str) -> Result<Source, Error> {
        Source::new(&args(Some(url)), &Environment::default())
    }

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(variables.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn address_is_that_of_the_configuration() {
        let status = |args: &Args, variables: &[(&str, &str)]| {
            Source::new(args, &environment(variables)).map(|source| (source.status.to_string(), source.url))
        };
        let of_environment = |variables: &[(&str, &str)]| status(&args(None), variables).expect("valid").1;
        assert_eq!(of_environment(&[]), "http://127.0.0.1:9191");
        let pool = ("PENSTOCK_POOLS__3__QUEUE__TTL", "90s");
        for (variable, url) in [
            (("PENSTOCK_LISTEN__HTTP", "127.0.0.1:7001"), "http://127.0.0.1:7001"),
            (("PENSTOCK_LISTEN", "{http: '10.0.0.5:7001'}"), "http://10.0.0.5:7001"),
            (("PENSTOCK_LISTEN__HTTP", "0.0.0.0:7001"), "http://127.0.0.1:7001"),
            (("PENSTOCK_LISTEN__HTTP", "[::]:7001"), "http://[::1]:7001"),
            (("PENSTOCK_LISTEN__HTTP", "unix:/run/p.sock"), "unix:/run/p.sock"),
        ] {
            assert_eq!(of_environment(&[pool, variable]), url, "{variable:?}");
        }
        let given = Args { url: Some("http://127.0.0.1:7002".into()), ..args(None) };
        let variable = [("PENSTOCK_LISTEN__HTTP", "127.0.0.1:7001")];
        assert_eq!(status(&given, &variable).expect("valid").1, "http://127.0.0.1:7002");

        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("penstock.yaml");
        let text =
            "listen: {http: '127.0.0.1:7003'}\npools:\n- {name: a, endpoints: {static: ['127.0.0.1:1']}}\n";
        std::fs::write(&file, text).expect("written");
        let of_file = Args { config: Some(file), ..args(None) };
        assert_eq!(status(&of_file, &[]).expect("valid").1, "http://127.0.0.1:7003");
        assert_eq!(status(&of_file, &variable).expect("valid").1, "http://127.0.0.1:7001");
        for wrong in ["9191", "127.0.0.1:0"] {
            let error = status(&args(None), &[("PENSTOCK_LISTEN__HTTP", wrong)]).expect_err(wrong);
            assert_eq!(error.exit_code(), 2, "{error}");
            assert!(error.to_string().contains("listen.http"), "{error}");
        }
    }

    #[test]
    fn http_and_unix_addresses_are_accepted() {
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
    fn invalid_address_is_bad_usage_and_names_the_valid_forms() {
        for url in ["127.0.0.1:9191", "https://h:1", "ftp://h", "unix:p", "http://", "http://h:99999"] {
            let error = source(url).expect_err(url);
            assert_eq!(error.exit_code(), 2, "{url}");
            assert!(error.to_string().contains("http://HOST:PORT"), "{error}");
        }
    }

    #[tokio::test]
    async fn unreachable_companion_error_names_the_address_and_the_commands() {
        // A port that is bound, but has no listener.
        let bound = tokio::net::TcpSocket::new_v4().expect("a socket");
        bound.bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
        let port = bound.local_addr().expect("an address").port();
        let missing = std::env::temp_dir().join("penstock-missing.sock");
        for url in [format!("http://127.0.0.1:{port}"), format!("unix:{}", missing.display())] {
            let error = source(&url).expect("valid").status().await.expect_err(&url);
            assert_eq!(error.exit_code(), 1);
            let text = error.to_string();
            assert!(text.contains(&url) && text.contains("penstock serve"), "{text}");
        }
    }

    #[test]
    fn token_is_a_single_word_in_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let source = |path: PathBuf| {
            let args = Args { token_file: Some(path), ..args(Some("http://127.0.0.1:1")) };
            Source::new(&args, &Environment::default())
        };
        assert_eq!(source(path.clone()).expect_err("missing").exit_code(), 2);
        std::fs::write(&path, "two words\n").expect("written");
        assert_eq!(source(path.clone()).expect_err("two").exit_code(), 2);
        std::fs::write(&path, "a-long-secret\n").expect("written");
        assert_eq!(source(path).expect("one").token.as_deref(), Some("a-long-secret"));
    }
}

//! Endpoints from a file in the form of `endpoints.static`, which may change at any time.
//!
//! When the file is invalid, the last endpoints stay, and the log has the position of the error.

use std::io;
use std::path::{Path, PathBuf};

use penstock_config::{self as config, Endpoint};
use tokio::sync::mpsc;

use super::{Report, Settings};
use crate::base::watched_file;

/// Bytes of the file.
const FILE_MAX: u64 = 4 << 20;

/// Reads the file now and after every change.
pub(super) async fn run(mut report: Report, path: PathBuf) {
    let (changed, mut changes) = mpsc::channel(1);
    watched_file::watch(path.clone(), changed, || ());
    // The last error. A different one is logged as well.
    let mut last_error = None;
    while changes.recv().await.is_some() {
        let (path, settings) = (path.clone(), report.settings.clone());
        // Fails when the runtime shuts down.
        let Ok(read) = tokio::task::spawn_blocking(move || read(&path, &settings)).await else {
            return;
        };
        match read {
            Ok(endpoints) => {
                last_error = None;
                report.send_endpoints(endpoints).await;
            }
            Err(why) => {
                let why = why.to_string();
                if last_error.as_ref() != Some(&why) {
                    report.failing = false;
                }
                report.failed(&why);
                last_error = Some(why);
            }
        }
    }
}

fn read(path: &Path, settings: &Settings) -> Result<Vec<Endpoint>, config::Error> {
    let failed = |source| config::Error::Read { path: path.into(), source };
    if std::fs::metadata(path).map_err(failed)?.len() > FILE_MAX {
        return Err(failed(io::Error::other(format!("the file is longer than {FILE_MAX} bytes"))));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let Settings { defaults, needs_batched_tokens, .. } = settings;
    config::parse_endpoints(&text, &path.display().to_string(), defaults, *needs_batched_tokens)
}

#[cfg(test)]
mod tests {
    use penstock_config::Discovery;

    use super::*;
    use crate::base::found::Found;
    use crate::discovery::{settings, states};

    fn ports(found: &Found) -> Vec<u16> {
        found.discovered.endpoints.iter().map(|endpoint| endpoint.address.port()).collect()
    }

    fn read_file(path: &Path) -> Result<Vec<Endpoint>, config::Error> {
        read(path, &settings(Discovery::File(path.into())))
    }

    #[tokio::test]
    async fn a_written_and_a_replaced_file_is_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("servers.yaml");
        let (sender, mut found) = mpsc::channel(8);
        let report = Report::new("a".into(), settings(Discovery::File(path.clone())), sender, states("a"));
        let task = tokio::spawn(run(report, path.clone()));
        // The file may appear later.
        std::fs::write(&path, "- 127.0.0.1:1\n- {address: '127.0.0.1:2', variant: h100}\n").expect("written");
        let first = found.recv().await.expect("found");
        assert_eq!(ports(&first), [1, 2]);
        assert_eq!(first.discovered.endpoints[1].variant, "h100");
        std::fs::write(&path, "- 127.0.0.1:3\n").expect("written");
        assert_eq!(ports(&found.recv().await.expect("found")), [3]);
        let new = folder.path().join("new");
        std::fs::write(&new, "['127.0.0.1:4']").expect("written");
        std::fs::rename(&new, &path).expect("renamed");
        assert_eq!(ports(&found.recv().await.expect("found")), [4]);
        task.abort();
    }

    #[test]
    fn an_error_has_the_position_in_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("servers.yaml");
        let name = path.display();
        for (text, place, word) in [
            ("- 127.0.0.1:1\n- nowhere\n", format!("{name}:2: "), "ip:port"),
            ("- 127.0.0.1:1\n- 127.0.0.1:1\n", format!("{name}:2: "), "twice"),
            ("- {adress: '127.0.0.1:1'}\n", format!("{name}:1: "), "adress"),
            ("pools: []\n", format!("{name}:1: "), ""),
        ] {
            std::fs::write(&path, text).expect("written");
            let message = read_file(&path).expect_err(text).to_string();
            assert!(message.starts_with(&place) && message.contains(word), "{text}: {message}");
        }
        for empty in ["[]", "", "---\n[]\n", "\n"] {
            std::fs::write(&path, empty).expect("written");
            assert_eq!(read_file(&path).expect("no endpoints"), [], "{empty:?}");
        }
        let json = "---\n[\"127.0.0.1:1\",\n {\"address\": \"127.0.0.1:2\", \"max_batch\": 64}]";
        std::fs::write(&path, json).expect("written");
        assert_eq!(read_file(&path).expect("JSON is YAML")[1].max_batch, 64);
        for outside in ["- 127.0.0.1:1\nlisten: {}\n", "- 127.0.0.1:1\n...\nlisten: {}\n"] {
            std::fs::write(&path, outside).expect("written");
            assert!(read_file(&path).is_err(), "{outside}");
        }
        std::fs::remove_file(&path).expect("removed");
        assert!(read_file(&path).expect_err("gone").to_string().starts_with(&name.to_string()));
    }

    #[test]
    fn entries_have_the_defaults_and_lack_no_value_that_a_class_needs() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("servers.yaml");
        std::fs::write(&path, "- {address: '127.0.0.1:1', max_batched_tokens: 4096}\n- 127.0.0.1:2\n")
            .expect("written");
        let mut settings = settings(Discovery::File(path.clone()));
        settings.needs_batched_tokens = true;
        let message = read(&path, &settings).expect_err("unknown").to_string();
        let place = format!("{}:2: ", path.display());
        assert!(message.starts_with(&place), "{message}");
        for word in ["max_batched_tokens", "prefill_busy_threshold_frac"] {
            assert!(message.contains(word), "{message}");
        }
        settings.defaults.max_batched_tokens = Some(8_192);
        settings.defaults.variant = "h100".into();
        let found = read(&path, &settings).expect("known");
        let values = found.iter().map(|endpoint| (endpoint.variant.as_str(), endpoint.max_batched_tokens));
        assert_eq!(values.collect::<Vec<_>>(), [("h100", Some(4_096)), ("h100", Some(8_192))]);
    }
}

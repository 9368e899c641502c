//! Endpoints that stand in a file of their own, in the form of `endpoints.static`, and may change there at any time.
//!
//! A file that is wrong takes nothing away: what it said before stays, and the log says where it is wrong.

use std::io;
use std::path::{Path, PathBuf};

use penstock_config::{self as config, Endpoint};
use tokio::sync::mpsc;

use super::Report;
use crate::reload::file;

/// Bytes of a file that is read.
const FILE_MAX: u64 = 4 << 20;

/// Reads the file, and whenever it changes.
pub(super) async fn run(mut report: Report, path: PathBuf) {
    let (changed, mut changes) = mpsc::channel(1);
    file::watch(path.clone(), changed, || ());
    // What was wrong about it last: another mistake is said too.
    let mut wrong = None;
    while changes.recv().await.is_some() {
        let path = path.clone();
        // It fails when the runtime ends.
        let Ok(read) = tokio::task::spawn_blocking(move || read(&path)).await else {
            return;
        };
        match read {
            Ok(endpoints) => {
                wrong = None;
                report.found(endpoints).await;
            }
            Err(why) => {
                let why = why.to_string();
                if wrong.as_ref() != Some(&why) {
                    report.failing = false;
                }
                report.failed(&why);
                wrong = Some(why);
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<Endpoint>, config::Error> {
    let failed = |source| config::Error::Read {
        path: path.into(),
        source,
    };
    if std::fs::metadata(path).map_err(failed)?.len() > FILE_MAX {
        return Err(failed(io::Error::other(format!(
            "it is longer than {FILE_MAX} bytes"
        ))));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    config::parse_endpoints(&text, &path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::Found;
    use penstock_config::Discovery;

    fn ports(found: &Found) -> Vec<u16> {
        found.endpoints.iter().map(|it| it.address.port()).collect()
    }

    #[tokio::test]
    async fn a_file_is_read_again_when_it_is_written_and_when_it_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("servers.yaml");
        let (to, mut found) = mpsc::channel(8);
        let report = Report::new("a".into(), Discovery::File(path.clone()), to);
        let task = tokio::spawn(run(report, path.clone()));
        // It needn't be there from the start.
        std::fs::write(
            &path,
            "- 127.0.0.1:1\n- {address: '127.0.0.1:2', variant: h100}\n",
        )
        .expect("written");
        let first = found.recv().await.expect("found");
        assert_eq!(ports(&first), [1, 2]);
        assert_eq!(first.endpoints[1].variant, "h100");
        std::fs::write(&path, "- 127.0.0.1:3\n").expect("written");
        assert_eq!(ports(&found.recv().await.expect("found")), [3]);
        let new = folder.path().join("new");
        std::fs::write(&new, "['127.0.0.1:4']").expect("written");
        std::fs::rename(&new, &path).expect("renamed");
        assert_eq!(ports(&found.recv().await.expect("found")), [4]);
        task.abort();
    }

    #[test]
    fn a_wrong_file_says_where() {
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
            let message = read(&path).expect_err(text).to_string();
            assert!(
                message.starts_with(&place) && message.contains(word),
                "{text}: {message}"
            );
        }
        for nobody in ["[]", "", "---\n[]\n", "\n"] {
            std::fs::write(&path, nobody).expect("written");
            assert_eq!(read(&path).expect("nobody is there at present"), [], "{nobody:?}");
        }
        let json = "---\n[\"127.0.0.1:1\",\n {\"address\": \"127.0.0.1:2\", \"max_batch\": 64}]";
        std::fs::write(&path, json).expect("written");
        assert_eq!(read(&path).expect("JSON is YAML")[1].max_batch, 64);
        for out in ["- 127.0.0.1:1\nlisten: {}\n", "- 127.0.0.1:1\n...\nlisten: {}\n"] {
            std::fs::write(&path, out).expect("written");
            assert!(read(&path).is_err(), "{out}");
        }
        std::fs::remove_file(&path).expect("removed");
        assert!(
            read(&path)
                .expect_err("gone")
                .to_string()
                .starts_with(&name.to_string())
        );
    }
}

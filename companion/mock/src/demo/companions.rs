//! The companions of the demo's gateway. One of several leads; its pages have the state and the counts.

use serde::Deserialize;
use tokio::time::Instant;

use super::companion::{Companion, Counts, Pool};

/// One companion, or several of which one leads.
#[derive(Clone, Debug)]
pub(super) struct Companions(Vec<Companion>);

/// Answers of the companions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// When the companions were asked.
    pub(super) asked: Instant,
    /// The leader's number, from 1; `None`: no companion leads. The only companion always leads.
    pub(super) leader: Option<usize>,
    /// The pool in the leader's /status; `None`: no companion leads, or the leader doesn't answer.
    pub(super) pool: Option<Pool>,
}

/// The body of /readyz of one of several companions.
#[derive(Deserialize)]
struct Readiness {
    role: String,
}

impl Companions {
    /// `addresses` are those of the HTTP API, each as `host:port`.
    pub(super) fn new(addresses: &[String]) -> reqwest::Result<Self> {
        let companions = addresses.iter().map(|address| Companion::new(format!("http://{address}")));
        companions.collect::<reqwest::Result<_>>().map(Self)
    }

    /// The role of each companion, `leader` or `standby`; `None`: the companion doesn't answer.
    pub(super) async fn roles(&self) -> Vec<Option<String>> {
        let mut roles = Vec::with_capacity(self.0.len());
        for companion in &self.0 {
            let readiness: Result<Readiness, String> = companion.page("/readyz").await;
            roles.push(readiness.ok().map(|readiness| readiness.role));
        }
        roles
    }

    /// The leader's number, from 1; `None`: no companion leads. The only companion always leads.
    pub(super) async fn leader(&self) -> Option<usize> {
        if let [_] = self.0.as_slice() {
            return Some(1);
        }
        leader(&self.roles().await)
    }

    pub(super) async fn sample(&self) -> Sample {
        let asked = Instant::now();
        let leader = self.leader().await;
        let pool = match leader {
            Some(number) => self.0[number - 1].pool().await.ok(),
            None => None,
        };
        Sample { asked, leader, pool }
    }

    /// The leader's counts; `None`: no companion leads, or the leader doesn't answer.
    pub(super) async fn counts(&self) -> Option<Counts> {
        let number = self.leader().await?;
        self.0[number - 1].counts().await.ok()
    }
}

/// The number, from 1, of the companion with the role of the leader.
pub(super) fn leader(roles: &[Option<String>]) -> Option<usize> {
    let leader = roles.iter().position(|role| role.as_deref() == Some("leader"));
    leader.map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;

    use super::*;

    /// The address of a companion that answers /readyz with this text.
    async fn serve(readiness: &'static str) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let pages = Router::new().route("/readyz", get(move || async move { readiness }));
        tokio::spawn(async move { axum::serve(listener, pages).await });
        address
    }

    #[tokio::test]
    async fn leader_is_the_companion_with_that_role() {
        let standby = serve(r#"{"ready": true, "role": "standby", "leader": null}"#).await;
        let leader = serve(r#"{"ready": true, "role": "leader", "leader": "127.0.0.1:1"}"#).await;
        let companions = Companions::new(&[standby.clone(), leader]).unwrap();
        assert_eq!(companions.leader().await, Some(2));
        let broken = serve("ready").await;
        let companions = Companions::new(&[standby, broken]).unwrap();
        assert_eq!(companions.roles().await, [Some("standby".to_owned()), None]);
        assert_eq!(companions.leader().await, None);
        let sample = companions.sample().await;
        assert_eq!((sample.leader, sample.pool), (None, None));
    }

    #[tokio::test]
    async fn only_companion_leads() {
        let companions = Companions::new(&[serve("ready").await]).unwrap();
        assert_eq!(companions.leader().await, Some(1));
    }
}

//! Against the API server of `KUBECONFIG`, a cluster for tests: discovery of endpoints, what an endpoint picker reads there, and the lease of
//! the leader.

mod discovery;
mod objects;
mod picker;
mod replicas;

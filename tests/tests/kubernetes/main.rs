//! Against the API server of `KUBECONFIG`, a cluster for tests: discovery of endpoints, and the lease of the leader.

mod discovery;
mod replicas;

//! Several Envoys and several companions.

mod companions;
mod etcd_lease;
mod many_sessions;
mod replicas;
mod replicas_per_pool;

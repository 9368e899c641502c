//! Studies of the running service, one a program in `bin`, and the gateways of other projects that they measure beside it.

pub mod peers;

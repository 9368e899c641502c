//! Names that clients choose, with their hashes. A request's name is hashed once, and every table of names uses that hash.

use core::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

/// Hashes names. A clone gives the same hashes.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameHasher(DefaultHashBuilder);

impl NameHasher {
    pub(crate) fn hashed<'a>(&self, text: &'a str) -> HashedName<'a> {
        HashedName { text, hash: self.0.hash_one(text) }
    }
}

/// A name and its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashedName<'a> {
    pub(crate) text: &'a str,
    pub(crate) hash: u64,
}

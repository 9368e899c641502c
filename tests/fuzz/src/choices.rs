//! Decodes arbitrary bytes into random choices, so that the fuzzer controls every choice.
//!
//! Every byte string is a valid sequence of choices; at its end every choice is zero. Most numbers are small, so that
//! identifiers collide.

/// The remaining input.
#[derive(Clone, Copy, Debug)]
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    /// Starts with the whole input.
    #[must_use]
    pub const fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// Whether the input is used up.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A number below `most`, which must be at least 1.
    pub fn below(&mut self, most: u8) -> u8 {
        self.byte() % most
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u8) -> bool {
        self.below(n) == n - 1
    }

    /// One of the items; there must be at least one.
    pub fn item<T: Copy>(&mut self, items: &[T]) -> T {
        items[usize::from(self.byte()) % items.len()]
    }

    /// A number: mostly small, sometimes any.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=223 => u64::from(small % 16),
            224..=239 => u64::from(self.byte()) << 4,
            240..=247 => u64::from(self.byte()) << 16 | u64::from(self.byte()),
            248..=251 => u64::from(self.byte()) << 40,
            252 | 253 => u64::MAX - u64::from(self.byte()),
            254 | 255 => 1 << (self.byte() % 64),
        }
    }

    /// A number for 32-bit fields of the wire.
    pub fn small_number(&mut self) -> u32 {
        u32::try_from(self.number()).unwrap_or(u32::MAX)
    }

    /// A number or `None`.
    pub fn maybe(&mut self) -> Option<u64> {
        self.one_in(2).then(|| self.number())
    }

    /// Raw bytes; their count comes from the input too.
    pub fn bytes(&mut self) -> &'a [u8] {
        let count = match self.byte() {
            few @ 0..=250 => usize::from(few),
            many => usize::from(many - 250) << 8,
        };
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    /// A name: usually one of `usual`, sometimes any text.
    pub fn name(&mut self, usual: &[&str]) -> String {
        match self.byte() {
            any @ 0..=239 => usual[usize::from(any) % usual.len()].to_owned(),
            240..=249 => String::from_utf8_lossy(self.bytes()).into_owned(),
            long @ 250..=254 => char::from(b'a' + long % 5).to_string().repeat(usize::from(long) * 4),
            255 => String::new(),
        }
    }
}

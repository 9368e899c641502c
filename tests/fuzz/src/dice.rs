//! Decisions out of arbitrary bytes: the fuzzer's input, read as throws of dice.
//!
//! Every byte string is a valid sequence of throws; when it is used up, every throw is zero. Values come small mostly, for
//! that is where names collide.

/// What is left of the input.
#[derive(Clone, Copy, Debug)]
pub struct Dice<'a>(&'a [u8]);

impl<'a> Dice<'a> {
    /// All of the input.
    #[must_use]
    pub const fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// Nothing is left.
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

    /// A number below `most`, which is at least 1.
    pub fn below(&mut self, most: u8) -> u8 {
        self.byte() % most
    }

    /// Yes, once in `n`.
    pub fn one_in(&mut self, n: u8) -> bool {
        self.below(n) == n - 1
    }

    /// One of these; there is at least one.
    pub fn of<T: Copy>(&mut self, items: &[T]) -> T {
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

    /// The same, where the wire has 32 bits.
    pub fn small_number(&mut self) -> u32 {
        u32::try_from(self.number()).unwrap_or(u32::MAX)
    }

    /// A number, or none.
    pub fn maybe(&mut self) -> Option<u64> {
        self.one_in(2).then(|| self.number())
    }

    /// Some bytes as they are, their count said by the input too.
    pub fn bytes(&mut self) -> &'a [u8] {
        let count = match self.byte() {
            few @ 0..=250 => usize::from(few),
            many => usize::from(many - 250) << 8,
        };
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    /// A name: mostly one of these, sometimes any text.
    pub fn name(&mut self, usual: &[&str]) -> String {
        match self.byte() {
            any @ 0..=239 => usual[usize::from(any) % usual.len()].to_owned(),
            240..=249 => String::from_utf8_lossy(self.bytes()).into_owned(),
            long @ 250..=254 => char::from(b'a' + long % 5)
                .to_string()
                .repeat(usize::from(long) * 4),
            255 => String::new(),
        }
    }
}

//! Things that keep their number while they live. Numbers of the gone are given again, so tables that run
//! beside a slab stay as small as the most that ever lived at once.

use alloc::vec::Vec;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.places[number as usize] = Some(value);
            return number;
        }
        let number = u32::try_from(self.places.len()).expect("invariant: tables have limits far below 2^32");
        self.places.push(Some(value));
        number
    }

    /// `number` lives.
    pub(crate) fn remove(&mut self, number: u32) -> T {
        let value = self.places[number as usize]
            .take()
            .expect("invariant: a number that is used lives");
        self.free.push(number);
        value
    }

    /// `number` lives, and nobody wants it any more.
    pub(crate) fn discard(&mut self, number: u32) {
        let place = &mut self.places[number as usize];
        assert!(place.is_some(), "invariant: a number that is used lives");
        *place = None;
        self.free.push(number);
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.places.get(number as usize)?.as_ref()
    }

    pub(crate) const fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0_u32..)
            .zip(&self.places)
            .filter_map(|(number, place)| Some((number, place.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0_u32..)
            .zip(&mut self.places)
            .filter_map(|(number, place)| Some((number, place.as_mut()?)))
    }
}

impl<T> core::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        self.places[number as usize]
            .as_ref()
            .expect("invariant: a number that is used lives")
    }
}

impl<T> core::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.places[number as usize]
            .as_mut()
            .expect("invariant: a number that is used lives")
    }
}

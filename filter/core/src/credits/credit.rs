//! One admission credit: how many requests may run at each endpoint, and how many run.

use core::cmp::Ordering;
use core::time::Duration;

use penstock_wire::{self as wire, EndpointCredit, Register};

use crate::limits::{CREDIT_ENDPOINTS_MAX, CREDIT_PLACES_MAX, LIST_ENTRY_BYTES_MAX};
use crate::time::Instant;

#[derive(Debug)]
pub(super) struct Credit {
    pub(super) id: u64,
    expires_at: Instant,
    /// 0: no limit.
    prompt_bytes_max: u64,
    pub(super) saturation_milli: u32,
    pub(super) requeue: bool,
    endpoints: Vec<EndpointPlaces>,
    /// The position at which the next choice of an endpoint begins.
    turn: usize,
}

/// The places at an endpoint. `taken` never exceeds `places`.
#[derive(Debug)]
struct EndpointPlaces {
    address: String,
    places: u32,
    taken: u32,
}

impl EndpointPlaces {
    /// Compares the parts of the places that are taken.
    fn compare(&self, other: &Self) -> Ordering {
        let product = |taken: u32, places: u32| u64::from(taken).saturating_mul(places.into());
        product(self.taken, other.places).cmp(&product(other.taken, self.places))
    }
}

impl Credit {
    /// A credit without places, which has expired.
    pub(super) const fn new(id: u64) -> Self {
        Self {
            id,
            expires_at: Instant::from_nanos(0),
            prompt_bytes_max: 0,
            saturation_milli: 0,
            requeue: false,
            endpoints: Vec::new(),
            turn: 0,
        }
    }

    /// Adds places, and renews the credit. Places beyond a limit aren't used: the companion counts them until the credit is
    /// returned.
    pub(super) fn add(&mut self, now: Instant, message: &wire::Credit) {
        self.expires_at = now.after(Duration::from_millis(message.ttl_ms.into()));
        self.prompt_bytes_max = message.prompt_bytes_max;
        self.saturation_milli = message.saturation_milli;
        self.requeue = message.requeue;
        for EndpointCredit { address, requests } in &message.endpoints {
            if *requests == 0 || address.is_empty() || address.len() > LIST_ENTRY_BYTES_MAX {
                continue;
            }
            if let Some(endpoint) = self.endpoint_mut(address) {
                endpoint.places = endpoint.places.saturating_add(*requests).min(CREDIT_PLACES_MAX);
            }
        }
    }

    /// The entry of an endpoint; `None`: there are too many. A new one replaces one without places, which no request
    /// refers to.
    fn endpoint_mut(&mut self, address: &str) -> Option<&mut EndpointPlaces> {
        let known = self.endpoints.iter().position(|endpoint| endpoint.address == address);
        let index = known.or_else(|| self.endpoints.iter().position(|endpoint| endpoint.places == 0));
        let index = match index {
            Some(index) => index,
            None if self.endpoints.len() < CREDIT_ENDPOINTS_MAX => {
                self.endpoints.push(EndpointPlaces { address: String::new(), places: 0, taken: 0 });
                self.endpoints.len().saturating_sub(1)
            }
            None => return None,
        };
        let endpoint = self.endpoints.get_mut(index)?;
        if endpoint.address != address {
            address.clone_into(&mut endpoint.address);
        }
        Some(endpoint)
    }

    pub(super) fn has_expired(&self, now: Instant) -> bool {
        self.expires_at <= now
    }

    /// Whether the companion wouldn't have more to decide about this request than about any other: it is new, names no
    /// endpoints, has no time limit, is one sequence, and its prompt is short enough.
    pub(super) fn is_for(&self, register: &Register) -> bool {
        let is_new = register.requeues == 0 && register.requeued_from.is_none();
        let is_unrestricted =
            register.subset.is_empty() && register.pin.is_empty() && register.tolerations.is_empty();
        let has_limit = register.deadline_ms.is_some() || register.slo_ttft_ms.is_some();
        let is_short = self.prompt_bytes_max == 0 || register.prompt_bytes <= self.prompt_bytes_max;
        let is_one = register.sequences <= 1;
        is_new && is_unrestricted && !has_limit && is_short && is_one
    }

    /// Takes a place. Returns the position and the address of its endpoint; `None`: all places are taken.
    pub(super) fn take_place(&mut self) -> Option<(usize, &str)> {
        let endpoints = || self.endpoints.iter().enumerate();
        let (index, _) = endpoints()
            .skip(self.turn)
            .chain(endpoints().take(self.turn))
            .filter(|(_, endpoint)| endpoint.taken < endpoint.places)
            .min_by(|(_, a), (_, b)| a.compare(b))?;
        self.turn = index.saturating_add(1);
        let endpoint = self.endpoints.get_mut(index)?;
        endpoint.taken = endpoint.taken.saturating_add(1);
        Some((index, &endpoint.address))
    }

    /// Frees a place at the endpoint at this position.
    pub(super) fn free(&mut self, index: usize) {
        if let Some(endpoint) = self.endpoints.get_mut(index) {
            endpoint.taken = endpoint.taken.saturating_sub(1);
        }
    }

    /// Removes a taken place at the endpoint at this position.
    pub(super) fn consume(&mut self, index: usize) {
        self.free(index);
        if let Some(endpoint) = self.endpoints.get_mut(index) {
            endpoint.places = endpoint.places.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    fn with(endpoints: impl IntoIterator<Item = (String, u32)>) -> Credit {
        let mut credit = Credit::new(1);
        add(&mut credit, endpoints);
        credit
    }

    fn add(credit: &mut Credit, endpoints: impl IntoIterator<Item = (String, u32)>) {
        let message = wire::Credit {
            endpoints: endpoints
                .into_iter()
                .map(|(address, requests)| EndpointCredit { address, requests })
                .collect(),
            ..wire::Credit::default()
        };
        credit.add(Instant::from_nanos(0), &message);
    }

    /// Takes all places. Returns the addresses in the order of the choices.
    fn taken(credit: &mut Credit) -> Vec<String> {
        core::iter::from_fn(|| credit.take_place().map(|(_, address)| address.to_owned())).collect()
    }

    #[test]
    fn places_of_an_endpoint_are_limited() {
        let mut credit = with([("a".to_owned(), u32::MAX)]);
        add(&mut credit, [("a".to_owned(), u32::MAX)]);
        assert_eq!(u32::try_from(taken(&mut credit).len()), Ok(CREDIT_PLACES_MAX));
    }

    #[test]
    fn endpoints_are_limited() {
        let many = (0..=CREDIT_ENDPOINTS_MAX).map(|number| (number.to_string(), 1));
        assert_eq!(taken(&mut with(many)).len(), CREDIT_ENDPOINTS_MAX);
    }

    #[test]
    fn endpoint_without_places_makes_room_for_another() {
        let mut credit = with((0..CREDIT_ENDPOINTS_MAX).map(|number| (number.to_string(), 1)));
        let (index, _) = credit.take_place().expect("a place is free");
        credit.consume(index);
        add(&mut credit, [("new".to_owned(), 1)]);
        assert!(taken(&mut credit).contains(&"new".to_owned()));
    }

    #[test]
    fn addresses_that_are_empty_or_too_long_have_no_places() {
        let addresses = ["".to_owned(), "x".repeat(LIST_ENTRY_BYTES_MAX + 1)];
        let mut credit = with(addresses.map(|address| (address, 1)));
        assert_eq!(taken(&mut credit), [""; 0]);
    }

    #[test]
    fn endpoints_fill_in_proportion_to_their_places() {
        let mut credit = with([("a".to_owned(), 1), ("b".to_owned(), 3)]);
        assert_eq!(taken(&mut credit), ["a", "b", "b", "b"]);
    }
}

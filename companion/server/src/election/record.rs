//! The record as JSON.

use penstock_election::Record;

/// The record as the store keeps it.
pub(super) fn encode(record: &Record) -> String {
    // Numbers, strings and lists can always be written.
    serde_json::to_string(record).unwrap_or_default()
}

/// The record from the store. An unreadable one counts as absent; the next leader replaces it.
pub(super) fn decode(place: &str, text: &[u8]) -> Option<Record> {
    match serde_json::from_slice(text) {
        Ok(record) => Some(record),
        Err(why) => {
            tracing::warn!(
                store = place,
                %why,
                "the leader's record can't be read and is ignored; the next leader replaces it, and waits for \
                 startup_wait before it grants"
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_election::KnownEnvoy;

    use super::*;

    #[test]
    fn a_record_is_readable_and_its_fields_are_optional() {
        let record = Record {
            term: 1_764_000_000_000,
            leader: "10.0.0.1:9190".into(),
            envoys: vec![KnownEnvoy { envoy: u64::MAX, contexts: 17, digest: u64::MAX }],
            pickers: vec![KnownEnvoy { envoy: 5, contexts: 4, digest: 9 }],
            released: true,
            taking_over_from: Some("10.0.0.2:9190".into()),
        };
        assert_eq!(decode("store", encode(&record).as_bytes()), Some(record));
        let oldest = decode("store", br#"{"term": 3, "added_later": 1}"#);
        assert_eq!(oldest.map(|record| record.term), Some(3));
        assert_eq!(decode("store", b"{"), None);
    }

    #[test]
    fn the_largest_record_fits_into_an_annotation() {
        let envoy = KnownEnvoy { envoy: u64::MAX, contexts: u32::MAX, digest: u64::MAX };
        let record = Record {
            envoys: vec![envoy; penstock_election::ENVOYS_MAX],
            // The workers of the leader's own come on top.
            pickers: vec![envoy; penstock_election::PICKERS_MAX + 4],
            ..Record::default()
        };
        assert!(encode(&record).len() < 250 << 10);
    }
}

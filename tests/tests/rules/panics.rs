//! The filter and the protocol have no panic paths: a trap in the module cuts other clients' streams.
//!
//! clippy finds such paths where its lints are denied; this rule checks that they are denied, everywhere in these crates.

use crate::source::{is_generated, is_test_file, read, root, rust_files, shown, without_tests};

/// The crates that run inside Envoy.
const INSIDE_ENVOY: [&str; 4] = ["filter/src", "filter/core/src", "filter/native/src", "wire/src"];

/// The lints that find panic paths.
const LINTS: [&str; 5] = [
    "clippy::indexing_slicing",
    "clippy::unwrap_used",
    "clippy::expect_used",
    "clippy::panic",
    "clippy::arithmetic_side_effects",
];

#[test]
fn crates_inside_envoy_deny_panic_paths() {
    for directory in INSIDE_ENVOY {
        let file = root().join(directory).join("lib.rs");
        let text = read(&file);
        let denied = text.split("deny(").nth(1).and_then(|rest| rest.split(')').next()).unwrap_or_default();
        for lint in LINTS {
            assert!(denied.contains(lint), "{} does not deny {lint}", shown(&file));
        }
    }
}

#[test]
fn crates_inside_envoy_have_no_panicking_macros_and_no_exceptions() {
    let mut wrong = Vec::new();
    for directory in INSIDE_ENVOY {
        for file in rust_files(&root().join(directory)) {
            let text = read(&file);
            if is_generated(&text) || is_test_file(&file) {
                continue;
            }
            for (number, line) in without_tests(&text).lines().enumerate() {
                let code = line.split("//").next().unwrap_or_default();
                let is_checked_at_build =
                    code.trim_start().starts_with("const _: ()") || code.trim_start().starts_with("assert!(");
                let macros =
                    ["panic!(", "unreachable!(", "todo!(", "unimplemented!(", "assert_eq!(", "assert_ne!("];
                let exceptions = LINTS.iter().any(|lint| code.contains(lint))
                    && (code.contains("allow(") || code.contains("expect("));
                if macros.iter().any(|name| code.contains(name)) && !is_checked_at_build || exceptions {
                    wrong.push(format!("{}:{}: {}", shown(&file), number + 1, line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "panic paths inside Envoy:\n{}", wrong.join("\n"));
}

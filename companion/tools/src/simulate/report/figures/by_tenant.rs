//! Values of the heaviest tenants.

use penstock_simulate::results::Results;

use super::{figure, legend, percentage};
use crate::simulate::format::ms;
use crate::simulate::outcome::Outcome;
use crate::simulate::report::bars::{self, Group};
use crate::simulate::report::html::table;

/// Tenants of a chart; the table of the tenants has more.
const TENANTS_SHOWN: usize = 10;

/// Values of the heaviest tenants, for one run of each policy.
pub(in crate::simulate::report) fn by_tenant(outcome: &Outcome) -> Vec<String> {
    let first = &outcome.policies[0].shown().results.tenants;
    let groups = |value: fn(&Results, &str) -> (Option<f64>, String)| -> Vec<Group> {
        let groups = first.iter().take(TENANTS_SHOWN).map(|tenant| Group {
            name: tenant.name.to_string(),
            bars: outcome
                .policies
                .iter()
                .map(|policy| value(&policy.shown().results, &tenant.name))
                .collect(),
        });
        groups.collect()
    };
    let ttft = groups(|results, name| {
        let tenant = results.tenants.iter().find(|tenant| &*tenant.name == name);
        let value = tenant.and_then(|tenant| tenant.ttft_ms.p99);
        (value, ms(value))
    });
    let share = groups(|results, name| {
        let tenant = results.tenants.iter().find(|tenant| &*tenant.name == name);
        let value = tenant.map(|tenant| tenant.share * 100.0);
        (value, percentage(value))
    });
    let hidden = first.len().saturating_sub(TENANTS_SHOWN);
    let more = if hidden > 0 { format!(" The {TENANTS_SHOWN} heaviest tenants.") } else { String::new() };
    let tenant_figure = |title: &str, about: &str, unit: &str, groups: &[Group]| {
        let columns = std::iter::once("tenant").chain(outcome.policies.iter().map(|policy| &*policy.name));
        let rows = groups.iter().map(|group| {
            let texts = group.bars.iter().map(|(_, text)| text.clone());
            std::iter::once(group.name.clone()).chain(texts).collect()
        });
        let data = table("", columns, rows);
        let svg = bars::svg(title, unit, groups);
        figure(title, &format!("{about}{more}"), &legend(outcome), &svg, &data)
    };
    vec![
        tenant_figure(
            "Time to the first token by tenant, p99",
            "From the arrival, for 99 % of the tenant's served requests.",
            "ms",
            &ttft,
        ),
        tenant_figure(
            "Share of the served tokens by tenant",
            "Prompt and output tokens. A tenant that asks for less than its share gets all it asks for.",
            "% of the served tokens",
            &share,
        ),
    ]
}

//! The companion's roles, for the HTTP API and the elections.

use penstock_control::Scope;

use super::{Driver, Leads};

impl Driver {
    /// Publishes the roles, and what the elections must know.
    pub(super) fn report_leadership(&mut self) {
        while let Some(scope) = self.controls.next_touched() {
            self.publish_role(&scope);
            if let Some(known) = self.controls.take_known_envoys(&scope) {
                self.elections.of(&scope).report(known);
            }
        }
        let (roles, controls) = (&self.roles, &self.controls);
        if roles.borrow().len() != controls.len() {
            roles.send_modify(|known| known.retain(|scope, _| controls.control(scope).is_some()));
        }
    }

    fn publish_role(&self, scope: &Scope) {
        let Some(control) = self.controls.control(scope) else {
            return;
        };
        if *scope == Scope::Gateway {
            let leads = Leads::from(control);
            self.leads.send_if_modified(|known| core::mem::replace(known, leads) != leads);
        }
        self.roles.send_if_modified(|known| {
            let is_changed = known.get(scope) != Some(control.role());
            if is_changed {
                known.insert(scope.clone(), control.role().clone());
            }
            is_changed
        });
    }
}

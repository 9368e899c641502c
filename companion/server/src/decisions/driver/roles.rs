//! The companion's roles, for the HTTP API and the elections.

use penstock_control::{Control, Scope};

use super::{Driver, RoleTerm};
use crate::decisions::reports::Report;

impl Driver {
    /// Publishes the roles, and what the elections must know.
    pub(super) fn report_leadership(&mut self) {
        while let Some(scope) = self.controls.next_touched() {
            self.publish_role(&scope);
            if let Some(envoys) = self.controls.take_known_envoys(&scope) {
                let term = self.controls.control(&scope).map_or(0, Control::term);
                self.elections.of(&scope).report(Report::Known { term, envoys });
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
        let (role, term) = (control.role(), control.term());
        self.roles.send_if_modified(|known| {
            let is_same = |known: &RoleTerm| known.term == term && known.role == *role;
            let is_changed = !known.get(scope).is_some_and(is_same);
            if is_changed {
                let role = role.clone();
                known.insert(scope.clone(), RoleTerm { role, term });
            }
            is_changed
        });
    }
}

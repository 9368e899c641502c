//! The memory of frames that were sent, for the next frames.

use penstock_wire as wire;
use wire::command::Kind;

use crate::limits::{SPENT_COMMANDS_MAX, SPENT_GRANTS_MAX, SPENT_LISTS_MAX};

/// Messages and lists to use again.
#[derive(Debug, Default)]
pub(crate) struct SpentFrames {
    grants: Vec<wire::Grant>,
    lists: Vec<Vec<wire::Command>>,
}

impl SpentFrames {
    /// A message whose fields must all be set.
    pub(crate) fn take_grant(&mut self) -> wire::Grant {
        self.grants.pop().unwrap_or_default()
    }

    /// An empty list of commands.
    pub(crate) fn take_list(&mut self) -> Vec<wire::Command> {
        self.lists.pop().unwrap_or_default()
    }

    /// Keeps the list and the grants of a frame.
    pub(crate) fn keep(&mut self, frame: wire::CompanionFrame) {
        let mut list = frame.commands;
        for command in list.drain(..) {
            if let Some(Kind::Grant(grant)) = command.kind
                && self.grants.len() < SPENT_GRANTS_MAX
            {
                self.grants.push(grant);
            }
        }
        if self.lists.len() < SPENT_LISTS_MAX && (1..=SPENT_COMMANDS_MAX).contains(&list.capacity()) {
            self.lists.push(list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_frames_is_kept_up_to_the_limits() {
        let bye = Kind::Bye(wire::Bye {});
        let frame = |kinds: Vec<Kind>| {
            let commands = kinds.into_iter().map(|kind| wire::Command { kind: Some(kind) });
            wire::CompanionFrame { commands: commands.collect(), ..wire::CompanionFrame::default() }
        };
        let mut spent = SpentFrames::default();
        spent.keep(frame(Vec::new()));
        spent.keep(frame(vec![bye.clone(); SPENT_COMMANDS_MAX + 1]));
        assert_eq!((spent.grants.len(), spent.lists.len()), (0, 0));
        for _ in 0..2 * SPENT_GRANTS_MAX {
            spent.keep(frame(vec![bye.clone(), Kind::Grant(wire::Grant::default())]));
        }
        assert_eq!((spent.grants.len(), spent.lists.len()), (SPENT_GRANTS_MAX, SPENT_LISTS_MAX));
        let list = spent.take_list();
        assert!(list.is_empty() && list.capacity() >= 2);
    }
}

//! The modules of the service are rooms above each other: each imports only rooms below it.

use crate::module_tree::ModuleTree;
use crate::source::root;

/// From the bottom. The documentation of the crate says what each room is for.
const ROOMS: [&str; 9] =
    ["base", "metrics", "decisions", "election", "checks", "active", "discovery", "surface", "serve"];

#[test]
fn each_room_of_the_service_imports_only_rooms_below_it() {
    let storey = |room: &str| {
        let storey = ROOMS.iter().position(|known| *known == room);
        storey.unwrap_or_else(|| panic!("the service has a module `{room}` that is no room"))
    };
    let mut wrong = Vec::new();
    for (room, imported) in ModuleTree::of_crate(&root().join("companion/server/src/lib.rs")).top_level() {
        let above = imported.into_iter().filter(|imported| storey(imported) > storey(&room));
        wrong.extend(above.map(|above| format!("{room} imports {above}")));
    }
    assert!(wrong.is_empty(), "rooms that import rooms above them:\n{}", wrong.join("\n"));
}

//! Writes `docs/paths.md`, the page that lists every default path.

use std::fmt::Write as _;

use super::{DEFAULTS, PathAction};

const HEAD: &str = "# Paths

What computes is queued, whatever its path. What a path means is the same for all engines, so one list serves pools of any of them:

| list | what happens to a request |
|---|---|
| `paths.queued` | It is queued, unless its method is GET, HEAD, OPTIONS or DELETE: these pass. |
| `paths.passed` | It goes to the pool of its model, to the ready servers in turn, without waiting. With several pools the filter reads the body for that, up to `limits.body_bytes`. |
| `paths.refused` | It is answered 403 `path_refused`: it controls a server, or tells what other clients do. |
| none | It is answered 404 `path_not_found`; with `paths.other: pass` it passes. |

```yaml
paths:
  queued: [/my/generate, \"/engine/v1/*\"]     # `*` at the end: every path that begins so
  passed: [/v1/load_lora_adapter]            # allows a control that is refused by default
  refused: [/v1/images/*]
  other: refuse                              # or pass
```

- Your entries come before the defaults below, and the defaults that none of them names stay. The most specific of them counts: a whole path, then the
  longest beginning. `/a/*` also names `/a`, and a beginning also names the controls below it: list those under `refused`.
- A path is compared in the form in which a lenient server would run it: decoded, however often it is encoded; in lower case; without parameters (`;x=1`),
  doubled and trailing slashes and dot segments; without white space at the end of its parts. What passes and is spelled so that servers disagree about
  it (with `..`, a null byte, an encoded `?`) is answered 404, unless its method computes nothing. A WebSocket is answered 426, on every path.
- A queued path has the API of its end, so `/openai/v1/chat/completions` is a chat. All other queued paths have an API of their engine: every text of the body
  counts as its prompt, the greatest of `max_tokens`, `max_new_tokens`, `n_predict` and `num_predict` as its limit. A form (`multipart/form-data`) counts by its fields `prompt`,
  `input`, `text` and `instructions`, not by its files, and a body that is neither a JSON object nor a form is one request whose prompt has no length. The answer's `usage` settles the cost, where it has one.
- A body that names no model belongs to the pool with `default: true`, or to the only one. Otherwise a queued request is answered 400 with
  `param: model`, and one that passes goes to the first pool. A request without a body, like `GET /version`, goes to the default pool, else to the first. The model in a form can't be
  rewritten (`pools[].rewrite`).
- A response in the background (`\"background\": true` of `/v1/responses`) is queued like others. Its server acknowledges it and computes on, so it is charged by its estimate, and keeps its
  place until the metrics of the server show its end, or for `stock.release_after`, ten minutes at most by default. Without both, its place is free at once. Its answer is at the server that has it: `GET /v1/responses/ID` goes to any server of
  the pool, so such a pool needs one server.
- `GET /v1/models` is answered by the gateway: the models of all pools, in the fields of OpenAI's and of Anthropic's API. It asks each server of a pool with health checks for
  its list every 30 s, adapters included, and shows the models that requests of their name reach, whole names in `pools[].models`, and the aliases of
  `pools[].rewrite`. A pool whose servers are all away keeps its last list. `GET /v1/models/ID` answers with one of them; a name that isn't listed passes to the pool
  that serves it, or is answered 404 `model_not_found`. While no server has a list, both pass.

## Defaults
";

/// The page, as Markdown.
///
/// # Panics
/// Never; writing to a string doesn't fail.
#[must_use]
pub fn paths_page() -> String {
    let mut page = HEAD.to_owned();
    for (action, title) in
        [(PathAction::Queue, "Queued"), (PathAction::Pass, "Passed"), (PathAction::Refuse, "Refused")]
    {
        write!(page, "\n### {title}\n\n| path | engines |\n|---|---|\n").expect(NO_ERROR);
        let mut rows: Vec<_> = DEFAULTS.iter().filter(|default| default.action == action).collect();
        rows.sort_by_key(|default| default.path);
        for row in rows {
            writeln!(page, "| `{}` | {} |", row.path, row.engines.join(", ")).expect(NO_ERROR);
        }
    }
    page
}

/// Writing to a string doesn't fail.
const NO_ERROR: &str = "invariant: a string takes any text";

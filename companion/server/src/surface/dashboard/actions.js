// What the holder of the admin token can change: a tenant's weight and budget, an endpoint's and the companion's drain. The token stays in this
// page's memory and is lost with it.

import {byId, el, setOptions, setText} from "./dom.js";
import {tenantsOf} from "./series.js";

/** An endpoint with this taint takes only requests that tolerate it, so that it drains. */
const TAINT = "drained";
const JSON_TYPE = {"content-type": "application/json"};

const addressOf = entry => typeof entry === "string" ? entry : entry.address;
const taintsOf = entry => typeof entry === "string" ? [] : entry.taints ?? [];

/** The reason in an error's body, which is JSON or a line of text. */
const reasonOf = text => {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.trim();
  }
};

/** Asks by a dialog. Resolves to whether the answer was yes. */
const confirmed = (question, verb) => new Promise(resolve => {
  const dialog = byId("confirm");
  setText(byId("confirm-text"), question);
  setText(byId("confirm-yes"), verb);
  const end = answer => {
    dialog.close();
    resolve(answer);
  };
  byId("confirm-yes").onclick = () => end(true);
  byId("confirm-no").onclick = () => end(false);
  // Escape.
  dialog.oncancel = () => resolve(false);
  dialog.showModal();
  byId("confirm-no").focus();
});

export const createActions = (section, source) => {
  let picked = "";
  const result = el("p", {id: "result", role: "status"});
  const persist = el("input", {type: "checkbox", id: "persist"});
  const token = el("input", {type: "password", id: "token", autocomplete: "off", size: 24});
  const tenant = el("input", {type: "text", id: "weight-tenant", list: "weight-tenants", required: true, size: 14});
  const tenants = el("datalist", {id: "weight-tenants"});
  const weight = el("input", {type: "number", id: "weight", min: "0", step: "any", required: true});
  const budgetTenant = el("input", {type: "text", id: "budget-tenant", list: "budget-tenants", required: true, size: 14});
  const budgetTenants = el("datalist", {id: "budget-tenants"});
  const tokens = el("input", {type: "number", id: "budget-tokens", min: "1", step: "1", required: true});
  const endpoint = el("select", {id: "drain-endpoint"});

  const ask = async (method, path, body, headers = {}) => {
    const authorization = source.token ? {authorization: `Bearer ${source.token}`} : {};
    const answer = await fetch(path, {
      method, body, cache: "no-store", headers: {...authorization, ...body === undefined ? {} : JSON_TYPE, ...headers}, signal: AbortSignal.timeout(10_000),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${answer.status}: ${reasonOf(text)}`);
    return {json: JSON.parse(text), etag: answer.headers.get("etag")};
  };

  /** Runs a change and says what became of it. */
  const change = async (done, action) => {
    setText(result, "…");
    try {
      await action();
      setText(result, done);
    } catch (error) {
      setText(result, `Nothing was changed. ${error.message}`);
    }
    await source.ask();
  };

  /** Changes the picked pool by a merge patch that `patch(pool)` makes, if nothing else has changed meanwhile. */
  const configure = async patch => {
    const {json, etag} = await ask("GET", "config");
    const pool = json.pools.find(({name}) => name === source.pool);
    const body = JSON.stringify({pools: [{name: source.pool, ...patch(pool)}]});
    await ask("PATCH", persist.checked ? "config?persist=true" : "config", body, {"if-match": etag});
  };

  const setWeight = event => {
    event.preventDefault();
    const [name, value] = [tenant.value, Number(weight.value)];
    change(`The weight of ${name} in pool ${source.pool} is ${value}.`, () => configure(() => ({arbitration: {flows: {weights: {[name]: value}}}})));
  };

  /** Changes the budget of the tenant that is typed in, in the picked pool. */
  const changeBudget = (done, body) => change(done, () =>
    ask("PATCH", `budgets/${encodeURIComponent(source.pool)}/${encodeURIComponent(budgetTenant.value)}`, JSON.stringify(body)));

  const topUp = event => {
    event.preventDefault();
    const amount = Number(tokens.value);
    changeBudget(`${budgetTenant.value} may use ${amount} tokens more in pool ${source.pool}.`, {add_tokens: amount});
  };

  const resetBudget = async () => {
    if (!budgetTenant.reportValidity()) return;
    const name = budgetTenant.value;
    const question = `Reset the budget of ${name} in pool ${source.pool}? What it has used and owes in all windows counts no longer.`;
    if (!await confirmed(question, "Reset the budget")) return;
    changeBudget(`The budget of ${name} in pool ${source.pool} is unused.`, {reset: true});
  };

  const drainEndpoint = async drains => {
    const address = endpoint.value;
    const question = drains
      ? `Drain ${address}? It gets no new requests; running ones finish. Requests that tolerate the taint “${TAINT}” still go there.`
      : `Let ${address} take requests again?`;
    if (!await confirmed(question, drains ? "Drain the endpoint" : "Take requests again")) return;
    change(drains ? `${address} drains: it has the taint “${TAINT}”.` : `${address} takes requests again.`, () => configure(pool => {
      const list = pool?.endpoints?.static ?? [];
      if (!list.some(entry => addressOf(entry) === address)) {
        throw new Error(`${address} isn't in endpoints.static: drain it where it is listed, for example in DNS or in Kubernetes.`);
      }
      return {endpoints: {static: list.map(entry => {
        if (addressOf(entry) !== address) return entry;
        const others = taintsOf(entry).filter(taint => taint !== TAINT);
        return {...typeof entry === "string" ? {address} : entry, taints: drains ? [...others, TAINT] : others};
      })}};
    }));
  };

  const drain = async () => {
    const drains = !source.status.draining;
    const question = drains
      ? "Drain this companion? It rejects every new request until you take it back, and is no longer ready. Running requests finish."
      : "Take new requests again?";
    if (!await confirmed(question, drains ? "Drain the companion" : "Take requests again")) return;
    change(drains ? "The companion drains: new requests are rejected." : "The companion takes new requests again.",
      () => ask("POST", "drain", JSON.stringify(drains ? {} : {off: true})));
  };

  const budgetForm = el("form", {onsubmit: topUp}, el("label", {}, "Tenant ", budgetTenant, budgetTenants), el("label", {}, "Tokens ", tokens),
    el("button", {id: "top-up"}, "Add tokens"), el("button", {type: "button", id: "reset-budget", onclick: resetBudget}, "Reset …"));
  const drainButton = el("button", {type: "button", id: "drain", onclick: drain}, "Drain the companion …");
  section.append(
    el("h2", {id: "admin-title"}, "Changes"),
    el("p", {class: "hint"}, "With admin.token_file, a change needs its token; without it, changes are accepted from the companion's own machine only. The token also shows tenants whose identity came from a request's body."),
    el("form", {onsubmit: event => {
      event.preventDefault();
      source.token = token.value;
      token.value = "";
      setText(result, source.token ? "The token is used until this page is closed or reloaded." : "No token is used.");
      source.reload();
    }}, el("label", {}, "Admin token ", token), el("button", {id: "use-token"}, "Use"), el("label", {}, persist, "write changes of the configuration to its file")),
    el("fieldset", {}, el("legend", {}, "Weight of a tenant in the picked pool"),
      el("form", {onsubmit: setWeight}, el("label", {}, "Tenant ", tenant, tenants), el("label", {}, "Weight ", weight), el("button", {id: "set-weight"}, "Set"))),
    el("fieldset", {}, el("legend", {}, "Budget of a tenant in the picked pool"), budgetForm),
    el("fieldset", {}, el("legend", {}, "Drain"), el("div", {class: "row"},
      el("label", {}, "Endpoint ", endpoint),
      el("button", {type: "button", id: "drain-one", onclick: () => drainEndpoint(true)}, "Drain the endpoint …"),
      el("button", {type: "button", id: "undrain-one", onclick: () => drainEndpoint(false)}, "Take requests again …"),
      drainButton)),
    result);

  return {
    update: view => {
      setText(drainButton, source.status.draining ? "Take requests again …" : "Drain the companion …");
      const {tenants: known} = tenantsOf(view.samples);
      const names = JSON.stringify(known.map(({name}) => name));
      if (tenants.dataset.names !== names) {
        tenants.dataset.names = names;
        tenants.replaceChildren(...known.map(({name}) => el("option", {value: name})));
      }
      const limited = (view.statusPool?.budgets ?? []).map(({flow}) => flow);
      if (budgetTenants.dataset.names !== JSON.stringify(limited)) {
        budgetTenants.dataset.names = JSON.stringify(limited);
        budgetTenants.replaceChildren(...limited.map(flow => el("option", {value: flow})));
      }
      const addresses = view.statusPool?.endpoints.map(({address}) => address) ?? [];
      // The picked endpoint, until another one is chosen here.
      const wanted = view.endpoint && view.endpoint !== picked ? view.endpoint : endpoint.value;
      picked = view.endpoint;
      const chosen = addresses.includes(wanted) ? wanted : addresses[0] ?? "";
      setOptions(endpoint, addresses.map(address => ({value: address, text: address})), chosen);
    },
  };
};

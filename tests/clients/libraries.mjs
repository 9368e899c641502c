// The libraries of Node: prints what it can do as one line of JSON, then does what each line of its input asks for and prints the result.
import { createInterface } from "node:readline";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const base = process.argv[2];
const messages = [{ role: "user", content: "hello" }];
const text = (value) => (value && value.trim() ? "text" : "no text");

function openai() {
  const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none" });
  const chat = async (model, options) => {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 4 }, options);
    return text(answer.choices[0].message.content);
  };
  const stream = async (model) => {
    let all = "";
    for await (const piece of await client.chat.completions.create({ model, messages, max_tokens: 4, stream: true })) {
      all += piece.choices[0]?.delta?.content ?? "";
    }
    return text(all);
  };
  return {
    answer: () => chat("chat"),
    stream: () => stream("chat"),
    "kept alive": () => stream("chat"),
    "refused while kept alive": () => stream("impatient"),
    "budget of a day": () => chat("limited"),
    full: () => chat("full", { maxRetries: 0 }),
    "unknown model": () => chat("nowhere"),
    models: async () => ((await client.models.list()).data.length ? "names" : "none"),
    embedding: async () =>
      (await client.embeddings.create({ model: "chat", input: "hello" })).data[0].embedding.length ? "vector" : "none",
  };
}

function anthropic() {
  const client = new Anthropic({ baseURL: base, apiKey: "none" });
  const ask = (model) => ({ model, messages, max_tokens: 4 });
  const chat = async (model, options) => text((await client.messages.create(ask(model), options)).content[0].text);
  const stream = async (model) => text((await client.messages.stream(ask(model)).finalMessage()).content[0].text);
  return {
    answer: () => chat("chat"),
    stream: () => stream("chat"),
    "kept alive": () => stream("chat"),
    "refused while kept alive": () => stream("impatient"),
    "budget of a day": () => chat("limited"),
    full: () => chat("full", { maxRetries: 0 }),
    "unknown model": () => chat("nowhere"),
    "count of tokens": async () => {
      const count = await client.messages.countTokens({ model: "chat", messages });
      return typeof count.input_tokens === "number" ? "number" : "none";
    },
  };
}

function aiSdk() {
  const provider = createOpenAICompatible({ name: "penstock", baseURL: `${base}/v1` });
  const chat = async (model, more) => {
    const options = { model: provider(model), prompt: "hello", maxOutputTokens: 4, ...more };
    return text((await generateText(options)).text);
  };
  const stream = async (model) => {
    let all = "";
    const answer = streamText({ model: provider(model), prompt: "hello", maxOutputTokens: 4, onError: () => {} });
    for await (const part of answer.fullStream) {
      if (part.type === "error") throw part.error;
      if (part.type === "text-delta") all += part.text;
    }
    return text(all);
  };
  return {
    answer: () => chat("chat"),
    stream: () => stream("chat"),
    "kept alive": () => stream("chat"),
    "refused while kept alive": () => stream("impatient"),
    // It retries whatever a header says, so an application sets how often.
    "budget of a day": () => chat("limited", { maxRetries: 0 }),
    full: () => chat("full", { maxRetries: 0 }),
    "unknown model": () => chat("nowhere"),
  };
}

const libraries = { "openai (Node)": openai(), "anthropic (Node)": anthropic(), "ai-sdk (Node)": aiSdk() };

async function attempt(name, action) {
  const began = Date.now();
  try {
    return await action();
  } catch (error) {
    if (name === "refused while kept alive") {
      const shown = `${error?.message ?? ""} ${JSON.stringify(error)}`;
      return shown.includes("timed out") ? "error in the stream" : `error: ${shown}`;
    }
    const status = error?.status ?? error?.statusCode;
    if (status === 429 && Date.now() - began < 5000) return "429 at once";
    return status ? String(status) : `error: ${error}`;
  }
}

const actions = Object.entries(libraries).map(([library, all]) => [library, Object.keys(all)]);
console.log(JSON.stringify(Object.fromEntries(actions)));
for await (const line of createInterface({ input: process.stdin })) {
  const [library, name] = JSON.parse(line);
  console.log(JSON.stringify(await attempt(name, libraries[library][name])));
}

// The official JavaScript SDK, unchanged. Run by tests/e2e/test_openai_javascript.py with TANDEM_URL set.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const model = "smollm2-135m-instruct";
const client = new OpenAI({ baseURL: `${process.env.TANDEM_URL}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];

test("lists models", async () => {
  const models = await client.models.list();
  assert.deepEqual(models.data.map((each) => each.id), [model]);
});

test("streams a chat equal to the whole answer", async () => {
  const asked = { model, messages, temperature: 0, max_tokens: 24 };
  const whole = await client.chat.completions.create(asked);
  const stream = await client.chat.completions.create({
    ...asked, stream: true, stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.match(text, /Paris/);
  assert.equal(usage.prompt_tokens, whole.usage.prompt_tokens);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("the streaming helper puts the message together", async () => {
  const runner = client.chat.completions.stream({ model, messages, temperature: 0, max_tokens: 4 });
  const final = await runner.finalChatCompletion();
  assert.equal(final.choices[0].message.role, "assistant");
  assert.equal(final.choices[0].finish_reason, "length");
});

test("cancels a stream", async () => {
  const stream = await client.chat.completions.create({ model, messages, max_tokens: 4000, stream: true });
  let seen = 0;
  for await (const _ of stream) {
    if (++seen === 3) break;
  }
  assert.equal(seen, 3);
});

test("gets logprobs", async () => {
  const answer = await client.chat.completions.create({
    model, messages, temperature: 0, max_tokens: 4, logprobs: true, top_logprobs: 2,
  });
  assert.equal(answer.choices[0].logprobs.content.length, 4);
  assert.equal(answer.choices[0].logprobs.content[0].top_logprobs.length, 2);
});

test("a bad request is typed", async () => {
  await assert.rejects(
    client.chat.completions.create({ model, messages, temperature: 5 }),
    (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature",
  );
});

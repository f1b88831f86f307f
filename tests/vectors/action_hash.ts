// The hash of an action in TypeScript, as docs/formats/action-hash.md says. `node action_hash.js action-hash.json`
// computes the vectors and says which differ; the two functions can be taken over as they are.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

/** What a tool's arguments can be: `bigint` for whole numbers that `number` cannot hold. */
export type Value = null | boolean | number | bigint | string | Uint8Array | Value[] | { [key: string]: Value };

export interface Action {
  tool: string;
  tool_digest: string | null;
  args: { [key: string]: Value };
  thread: string;
  agent: string | null;
  subject: string;
}

const sha256 = (...parts: (string | Uint8Array)[]): Buffer => {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part);
  return hash.digest();
};

const text = (value: string): string => {
  if (/\p{Surrogate}/u.test(value)) throw new Error("a text is not valid Unicode");
  return JSON.stringify(value);
};

/** The canonical text of a value: RFC 8785, with tagged forms for what JSON cannot say. */
export function canonical(value: Value): string {
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "string") return text(value);
  if (typeof value === "bigint") {
    return Number.isSafeInteger(Number(value)) ? String(value) : `{"$int":${text(String(value))}}`;
  }
  if (typeof value === "number") {
    if (!Number.isFinite(value)) throw new Error("a number is not finite");
    return JSON.stringify(value);
  }
  if (value instanceof Uint8Array) {
    return `{"$bytes":{"sha256":"${sha256(value).toString("hex")}","size":${value.length}}}`;
  }
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  const members = Object.entries(value).map(([key, each]): [string, Value] => [key.startsWith("$") ? `$${key}` : key, each]);
  // By UTF-16 code units, as `<` compares texts.
  members.sort(([one], [other]) => (one < other ? -1 : 1));
  return `{${members.map(([key, each]) => `${text(key)}:${canonical(each)}`).join(",")}}`;
}

export const actionHash = (action: Action): Buffer => sha256(canonical({ v: 1, ...action }));

export const approvalHash = (hashes: Uint8Array[]): Buffer => sha256("stateroom approval 1\0", ...hashes);

// The notation of the vectors: one member that begins with "~" is a value that JSON cannot say.
const notations: { [tag: string]: (said: string) => Value } = {
  "~float": Number,
  "~int": BigInt,
  "~bytes": (said) => Buffer.from(said, "hex"),
  "~decimal": (said) => ({ $decimal: said }),
  "~date": (said) => ({ $date: said }),
  "~datetime": (said) => ({ $datetime: said }),
};

function read(written: any): Value {
  if (Array.isArray(written)) return written.map(read);
  if (written === null || typeof written !== "object") return written;
  const members = Object.entries(written);
  const [first] = members;
  if (members.length === 1 && first !== undefined && first[0].startsWith("~")) return notations[first[0]]!(first[1] as string);
  return Object.fromEntries(members.map(([key, each]) => [key, read(each)]));
}

const vectors = JSON.parse(readFileSync(process.argv[2]!, "utf8"));
const hashes = new Map<string, Buffer>();
let wrong = 0;
const check = (name: string, found: string, expected: string): void => {
  if (found === expected) return;
  wrong += 1;
  console.error(`${name}: ${found} instead of ${expected}`);
};
for (const { name, canonical: form, sha256: expected, ...written } of vectors.actions) {
  const action: Action = { ...written, args: read(written.args) };
  hashes.set(name, actionHash(action));
  check(name, canonical({ v: 1, ...action }), form);
  check(name, hashes.get(name)!.toString("hex"), expected);
}
for (const { actions, sha256: expected } of vectors.approvals) {
  const found = approvalHash(actions.map((each: string) => hashes.get(each)!));
  check(actions.join(", "), found.toString("hex"), expected);
}
console.log(wrong === 0 ? `${hashes.size} hold` : `${wrong} differ`);
process.exitCode = wrong === 0 ? 0 : 1;

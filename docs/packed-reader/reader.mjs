// Reads packed bodies (schemaless/codec/FORMAT.md): the second reader, written from that page alone.
//
//     node reader.mjs FILE.body ...     prints each document as JSON text, a line for each
//
// Bodies of `packed+none` and `packed+zlib`; a zstd frame needs a library of its own. Integers are BigInt beyond 2^53 and floats
// are told from integers by the class Float, since a JavaScript number is not enough to say what a document holds.

import { readFileSync } from "node:fs";
import { inflateSync } from "node:zlib";
import { pathToFileURL } from "node:url";

const ORDER = ["int", "decimal", "text", "typed", "double", "bigint", "array", "object"];
const KINDS = ["null", "false", "true", "int", "decimal", "text", "array", "object", "typed", "double", "bigint"];
const BITS = { null: 1, false: 2, true: 2, int: 4, decimal: 8, text: 16, array: 32, object: 64, typed: 128, double: 256, bigint: 512 };
const SINGLE = new Map([[1, "null"], [2, "false"], [3, "true"], ...ORDER.filter((kind) => kind !== "typed").map((kind) => [BITS[kind], kind])]);
const VALUES_PER_BYTE = 4;
const DEPTH = 512;
const FIRST_DAY = -719162n;
const LAST_DAY = 2932896n;
const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export class Refused extends Error {}

/** A float of a document: 1 and 1.0 are two documents. */
export class Float {
  constructor(value) {
    this.value = value;
  }
}

function check(condition, message) {
  if (!condition) throw new Refused(message);
}

class Section {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  take(count) {
    check(count <= this.bytes.length - this.at, "a section ends before the document");
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }

  byte() {
    return this.take(1)[0];
  }

  /** A varint as BigInt. */
  varint() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const digit = this.byte();
      value |= BigInt(digit & 127) << shift;
      if (digit < 128) {
        check((digit || !shift) && value < 1n << 64n, "a varint is not in its shortest form, or beyond 64 bits");
        return value;
      }
    }
    throw new Refused("a varint has more than ten bytes");
  }

  /** A varint that counts something, as number; more than 2^53 is more than any payload has. */
  count() {
    const value = this.varint();
    check(value <= BigInt(Number.MAX_SAFE_INTEGER), "a count is beyond all payloads");
    return Number(value);
  }

  string() {
    const end = this.bytes.indexOf(0, this.at);
    check(end >= 0, "a string has no end");
    const string = text(this.take(end - this.at));
    this.at += 1;
    return string;
  }
}

function text(bytes) {
  try {
    return UTF8.decode(bytes);
  } catch {
    throw new Refused("a string is not UTF-8");
  }
}

/** Raises unless all numbers below `count` occur, each for the first time after those below it. */
function checkOrder(numbers, count) {
  let seen = 0;
  for (const number of numbers) {
    check(number <= seen && number < count, "keys or shapes do not come in the order of their numbers");
    if (number === seen) seen += 1;
  }
  check(seen === count, "a key or shape does not occur");
}

class Reader {
  constructor(payload) {
    const whole = new Section(payload);
    const [schemaBytes, tokenBytes] = [whole.count(), whole.count()];
    this.schema = new Section(whole.take(schemaBytes));
    this.tokens = new Section(whole.take(tokenBytes));
    this.text = new Section(whole.take(payload.length - whole.at));
    this.left = VALUES_PER_BYTE * payload.length;
  }

  document() {
    const [document] = this.node(1, 0);
    for (const section of [this.schema, this.tokens, this.text]) {
      check(section.at === section.bytes.length, "bytes follow the document");
    }
    return document;
  }

  node(count, level) {
    this.left -= count;
    check(this.left >= 0, "more values than the payload's length allows");
    const kinds = this.kinds(count);
    const values = {};
    for (const kind of ORDER) {
      const here = kinds.reduce((sum, other) => sum + (other === kind), 0);
      if (here) values[kind] = this.values(kind, here, count, level);
    }
    const next = {};
    return kinds.map((kind) => {
      if (kind === "null") return null;
      if (kind === "true" || kind === "false") return kind === "true";
      next[kind] = (next[kind] ?? -1) + 1;
      return values[kind][next[kind]];
    });
  }

  kinds(count) {
    if (count === 1) {
      const kind = SINGLE.get(this.tokens.count());
      check(kind !== undefined, "a value has a mask that is none");
      return [kind];
    }
    const mask = this.schema.count();
    const alone = ORDER.find((kind) => BITS[kind] === mask);
    if (alone !== undefined) return Array(count).fill(alone);
    check(mask > 0 && mask < 1024 && !(mask & BITS.text && mask & BITS.typed), "a mask that is none");
    const kinds = [...this.tokens.take(count)].map((code) => KINDS[code]);
    check(kinds.every((kind) => kind !== undefined), "a kind that is none");
    check(mask === kinds.reduce((bits, kind) => bits | BITS[kind], 0), "a mask has other kinds than its values");
    return kinds;
  }

  values(kind, count, of, level) {
    const repeat = (make) => Array.from({ length: count }, make);
    switch (kind) {
      case "int":
        return this.numbers(count);
      case "decimal":
        return this.decimals(count, (of === 1 ? this.tokens : this.schema).byte());
      case "text":
        return repeat(() => this.text.string());
      case "typed":
        return this.typed(count);
      case "double":
        return repeat(() => {
          const bytes = this.text.take(8);
          return new Float(new DataView(bytes.buffer, bytes.byteOffset, 8).getFloat64(0, true));
        });
      case "bigint":
        return repeat(() => this.bigint());
      case "array":
        return this.arrays(count, level + 1);
      default:
        return this.objects(count, level + 1);
    }
  }

  numbers(count) {
    const predictor = count > 1 ? this.schema.byte() : 0;
    check(predictor <= 2, "a predictor that is none");
    let number = 0n;
    let step = 0n;
    return Array.from({ length: count }, (_, row) => {
      const varint = this.tokens.varint();
      const residual = varint & 1n ? -(varint >> 1n) - 1n : varint >> 1n;
      if (predictor === 0) return residual;
      const before = number;
      number = BigInt.asIntN(64, number + step + residual);
      if (predictor === 2 && row) step = number - before;
      return number;
    });
  }

  decimals(count, scale) {
    check(scale <= 15, "a scale that is none");
    return this.numbers(count).map((number) => {
      check(number <= 1n << 53n && number >= -(1n << 53n), "a decimal is beyond 2^53");
      return new Float(Number(number) / 10 ** scale);
    });
  }

  bigint() {
    const digits = this.text.string();
    check(/^-?[1-9][0-9]{0,4299}$/.test(digits), "an integer is spelled otherwise");
    const number = BigInt(digits);
    check(BigInt.asIntN(64, number) !== number, "a bigint has 64 bits");
    return number;
  }

  typed(count) {
    check(count >= 4, "too few strings are typed");
    const format = this.schema.byte();
    if (format === 4 || format === 5) {
      const digits = format === 4 ? 32 : this.schema.byte();
      check(digits > 0 && digits % 2 === 0 && digits <= 254, "hexadecimal text of no such length");
      return Array.from({ length: count }, () => {
        const string = Buffer.from(this.text.take(digits / 2)).toString("hex");
        return format === 5 ? string : string.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
      });
    }
    const spell = this.speller(format);
    return this.numbers(count).map(spell);
  }

  /** What spells the numbers of a typed node. */
  speller(format) {
    if (format === 0) return timeOfDay;
    if (format === 2) return day;
    check(format === 1 || format === 3, "a type that is none");
    const separator = format === 1 ? String.fromCharCode(this.schema.byte()) : "T";
    const digits = this.schema.byte();
    const suffix = format === 1 ? this.schema.string() : "";
    check(digits <= 9 && "T ".includes(separator), "a form that is none");
    check(/^(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?$/.test(suffix) && !suffix.endsWith("\n"), "a suffix that is none");
    if (format === 3) return (number) => decimalText(number, digits);
    return (number) => {
      const [seconds, fraction] = divided(number, 10n ** BigInt(digits));
      const [days, second] = divided(seconds, 86400n);
      const point = digits ? `.${String(fraction).padStart(digits, "0")}` : "";
      return `${day(days)}${separator}${timeOfDay(second)}${point}${suffix}`;
    };
  }

  below(level) {
    check(level <= DEPTH, "more levels than any document has");
  }

  arrays(count, level) {
    this.below(level);
    const form = count > 1 ? this.schema.byte() : 0;
    if (form) {
      check(form >= 2 && form <= 8, "a form that is none");
      const columns = Array.from({ length: form }, () => this.node(count, level));
      return Array.from({ length: count }, (_, row) => columns.map((column) => column[row]));
    }
    const lengths = this.numbers(count);
    const same = count > 1 && lengths.every((length) => length === lengths[0]);
    check(!(same && lengths[0] >= 2n && lengths[0] <= 8n), "a form that is not used for one length");
    check(lengths.every((length) => length >= 0n), "a length below zero");
    const total = lengths.reduce((sum, length) => sum + length, 0n);
    check(total <= BigInt(this.left), "more values than the payload's length allows");
    const items = total ? this.node(Number(total), level) : [];
    let at = 0;
    return lengths.map((length) => items.slice(at, (at += Number(length))));
  }

  objects(count, level) {
    this.below(level);
    const [shapeCount, keyCount] = [this.schema.count(), this.schema.count()];
    const keys = [];
    while (keys.length < keyCount) keys.push(text(this.schema.take(this.schema.count())));
    const shapes = shapeCount === 1 ? [[...keys.keys()]] : [];
    while (shapes.length < shapeCount) shapes.push(this.shape());
    checkOrder(shapes.flat(), keyCount);
    check(new Set(keys).size === keyCount, "two keys are the same");
    check(new Set(shapes.map(String)).size === shapeCount, "two shapes are the same");
    const alone = shapeCount === 1 && keyCount > 0;
    const rows = alone ? Array(count).fill(0) : Array.from({ length: count }, () => this.tokens.count());
    checkOrder(rows, shapeCount);
    const owners = Array(keyCount).fill(0);
    for (const row of rows) for (const key of shapes[row]) owners[key] += 1;
    const columns = owners.map((owned) => this.node(owned, level));
    const next = Array(keyCount).fill(0);
    return rows.map((row) => new Map(shapes[row].map((key) => [keys[key], columns[key][next[key]++]])));
  }

  shape() {
    let after = 0;
    const shape = [];
    for (let left = this.schema.count(); left > 0; left -= 1) {
      const spelled = this.schema.count();
      check(spelled !== after + 1, "a key is spelled where it is the next");
      shape.push(spelled ? spelled - 1 : after);
      after = shape.at(-1) + 1;
    }
    check(new Set(shape).size === shape.length, "a key twice in a shape");
    return shape;
  }
}

/** Quotient, towards minus infinity, and remainder. */
function divided(number, by) {
  const rest = ((number % by) + by) % by;
  return [(number - rest) / by, rest];
}

function two(number) {
  return String(number).padStart(2, "0");
}

function timeOfDay(number) {
  check(number >= 0n && number < 360000n, "a time of day that is none");
  return `${two(number / 3600n)}:${two((number / 60n) % 60n)}:${two(number % 60n)}`;
}

function day(number) {
  check(number >= FIRST_DAY && number <= LAST_DAY, "a date that is none");
  const date = new Date(Number(number) * 86400000);
  return `${String(date.getUTCFullYear()).padStart(4, "0")}-${two(date.getUTCMonth() + 1)}-${two(date.getUTCDate())}`;
}

function decimalText(number, digits) {
  const shown = String(number < 0n ? -number : number).padStart(digits + 1, "0");
  const whole = `${number < 0n ? "-" : ""}${shown.slice(0, shown.length - digits)}`;
  return digits ? `${whole}.${shown.slice(-digits)}` : whole;
}

/** The document of a packed payload: null, booleans, BigInt, Float, string, array, Map. */
export function unpack(payload) {
  return new Reader(payload).document();
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit += 1) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1;
  return byte >>> 0;
});

function crc32(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = CRC_TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

/** The payload in an envelope of packed, `inflate` by compressor id for those that are not here. */
export function unseal(body, inflate = {}) {
  check(body.length >= 7 && body[0] === 0xc1 && body[1] >> 4 === 2, "no packed body");
  check(body.readUInt32BE(body.length - 4) === crc32(body.subarray(0, -4)), "the checksum differs");
  const open = { 0: (payload) => payload, 1: inflateSync, ...inflate }[body[1] & 15];
  check(open !== undefined, `nothing here inflates compressor ${body[1] & 15}`);
  return open(body.subarray(2, -4));
}

/** A document as JSON text in which floats have a point or an exponent, as Python writes them. */
export function shown(value) {
  if (value instanceof Float) return floatText(value.value);
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return `[${value.map(shown).join(",")}]`;
  if (value instanceof Map) return `{${[...value].map(([key, item]) => `${JSON.stringify(key)}:${shown(item)}`).join(",")}}`;
  return JSON.stringify(value);
}

function floatText(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value < 0 ? "-Infinity" : "Infinity";
  if (Object.is(value, -0)) return "-0.0";
  const spelled = String(value);
  return /[.e]/.test(spelled) ? spelled : `${spelled}.0`;
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  for (const path of process.argv.slice(2)) {
    try {
      console.log(shown(unpack(unseal(readFileSync(path)))));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      console.log(`refused: ${error.message}`);
    }
  }
}

// Results that brokers do not have yet: in a file before they are sent. It survives the worker.
'use strict';
const fs = require('node:fs');

class Outbox {
  constructor(file) {
    this.file = file;
    this.waiting = new Map(); // broker → task id → result
    if (fs.existsSync(file)) {
      const text = fs.readFileSync(file, 'utf8');
      const whole = text.slice(0, text.lastIndexOf('\n') + 1); // the last line may be torn
      fs.truncateSync(file, Buffer.byteLength(whole));
      for (const line of whole.split('\n').filter(Boolean)) {
        const { broker, result, taken } = JSON.parse(line);
        if (result) this.of(broker).set(result.task_id, unpack(result));
        for (const id of taken ?? []) this.of(broker).delete(id);
      }
    }
    this.descriptor = fs.openSync(file, 'a', 0o600);
  }

  of(broker) {
    if (!this.waiting.has(broker)) this.waiting.set(broker, new Map());
    return this.waiting.get(broker);
  }

  brokers() {
    return [...this.waiting.keys()].filter((broker) => this.of(broker).size > 0);
  }

  isEmpty() {
    return this.brokers().length === 0;
  }

  first(broker, most) {
    return [...this.of(broker).values()].slice(0, most);
  }

  put(broker, result) {
    this.write({ broker, result: pack(result) });
    this.of(broker).set(result.task_id, result);
  }

  taken(broker, ids) {
    const gone = ids.filter((id) => this.of(broker).delete(id));
    if (gone.length) this.write({ broker, taken: gone });
  }

  write(line) {
    fs.writeSync(this.descriptor, `${JSON.stringify(line)}\n`);
  }

  close() {
    fs.closeSync(this.descriptor);
    if (this.isEmpty()) fs.rmSync(this.file);
  }
}

const pack = (result) => ({ ...result, value: result.value.toString('base64') });
const unpack = (result) => ({ ...result, value: Buffer.from(result.value, 'base64') });

module.exports = { Outbox };

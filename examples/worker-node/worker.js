// A worker of a search: node worker.js JOB_DIR --name NAME [--slots N] [--modules FOLDER] [--grace-s S]
//
// It knows docs/search-protocol.md and search.proto, which it reads as it is, and none of dlctl's
// code. It runs tasks of the types `node` (see task.js) and `exec`, each in a process of its own.
'use strict';
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { parseArgs, promisify } = require('node:util');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const { Task } = require('./process.js');
const { Outbox } = require('./outbox.js');

const TYPES = ['node', 'exec'];
const POLL_S = 5, RENEW_S = 1, CALL_S = 10, RETRY_MS = 200, FAILING_MS = 1000, LAST_RESULTS_MS = 10000;
const MOST_RESULTS = 256;
const MESSAGE_BYTES = 64 << 20;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function readJson(file) {
  try {
    return JSON.parse(fs.readFileSync(file, 'utf8'));
  } catch {
    return null; // not there yet, or being replaced
  }
}

// What the search's jobs have: dlctl's runtime, and the Python that programs of tasks find.
function readPlace(jobDir) {
  const plan = readJson(path.join(jobDir, 'plan.json'));
  const runtime = plan?.runtime_dir ?? path.join(__dirname, '../..');
  const python = plan?.environment?.python;
  return { runtime, bin: python?.startsWith('/') ? path.dirname(python) : null };
}

function loadProtocol(runtime) {
  const file = path.join(runtime, 'search/protocol/search/v1/search.proto');
  const options = { keepCase: true, longs: String, enums: String, defaults: true };
  return grpc.loadPackageDefinition(loader.loadSync(file, options)).search.v1;
}

class Worker {
  constructor(jobDir, { name, slots, modules, graceMs }) {
    Object.assign(this, { jobDir, name, slots, modules, graceMs });
    const { runtime, bin } = readPlace(jobDir);
    this.protocol = loadProtocol(runtime);
    process.env.PYTHONPATH = runtime;
    if (bin) process.env.PATH = `${bin}:${process.env.PATH}`;
    const keys = (file) => fs.readFileSync(path.join(jobDir, 'search/tls', file));
    this.credentials = grpc.credentials.createSsl(
      keys('ca.pem'), keys('worker.key'), keys('worker.pem'));
    this.outbox = new Outbox(path.join(jobDir, 'search/outboxes', `${name}.jsonl`));
    this.tasks = new Map(); // id → Task
    this.clients = new Map(); // broker → { address, client }
    this.running = new Map(); // broker → the loops that talk to it
    this.failingSince = new Map(); // broker → when the first call failed since its last answer
    this.home = '';
    this.leaving = false;
    this.waiting = new Set();
  }

  changed() {
    for (const wake of this.waiting) wake();
    this.waiting.clear();
  }

  nextChange() {
    return new Promise((resolve) => this.waiting.add(resolve));
  }

  open(address) {
    return new this.protocol.Broker(address, this.credentials, {
      'grpc.ssl_target_name_override': 'search.dlctl',
      'grpc.enable_http_proxy': 0,
      'grpc.max_send_message_length': MESSAGE_BYTES,
      'grpc.max_receive_message_length': MESSAGE_BYTES,
      'grpc.initial_reconnect_backoff_ms': 100,
      'grpc.max_reconnect_backoff_ms': 1000,
    });
  }

  // Call a broker where it listens now; null, after a moment, if it does not answer.
  async callBroker(broker, method, request, seconds) {
    const found = readJson(path.join(this.jobDir, 'search/endpoints', `${broker}.json`));
    let known = this.clients.get(broker);
    if (found && known?.address !== found.address) {
      known?.client.close();
      known = { address: found.address, client: this.open(found.address) };
      this.clients.set(broker, known);
    }
    try {
      if (!known) throw new Error('it has no endpoint yet');
      const deadline = Date.now() + 1000 * seconds;
      const reply = await promisify(known.client[method]).call(known.client, request, { deadline });
      this.failingSince.delete(broker);
      return reply;
    } catch (error) {
      if (!this.failingSince.has(broker)) {
        this.failingSince.set(broker, Date.now());
        console.log(`broker ${broker}: ${error.message}`);
      }
      await sleep(RETRY_MS);
      return null;
    }
  }

  // Return a random broker's name beside one. The nameserver's `Lookup` would know the living ones.
  findBroker(without) {
    const folder = path.join(this.jobDir, 'search/endpoints');
    const files = fs.existsSync(folder) ? fs.readdirSync(folder) : [];
    const names = files.filter((file) => /^[^.].*\.json$/.test(file)).map((file) => file.slice(0, -5))
      .filter((name) => name !== 'nameserver' && name !== without);
    return names[Math.floor(Math.random() * names.length)] ?? '';
  }

  findHome() {
    const since = this.failingSince.get(this.home);
    if (this.home && !(since && Date.now() - since > FAILING_MS)) return;
    const found = this.findBroker(this.home);
    if (!found) return;
    this.home = found;
    console.log(`takes tasks from the broker ${found}`);
    this.attend(found);
    this.changed();
  }

  // Begin to talk to a broker: to the home, and to those that still wait for results.
  attend(broker) {
    if (this.running.has(broker)) return;
    this.running.set(broker, [this.send(broker), this.poll(broker), this.renew(broker)]);
  }

  async send(broker) {
    let knows = false; // that this worker leaves: then its end is no death of its tasks
    for (;;) {
      const results = this.outbox.first(broker, MOST_RESULTS);
      const { name: worker, leaving } = this;
      if (results.length === 0 && knows === leaving) {
        await this.nextChange();
        continue;
      }
      const reply = await this.callBroker(broker, 'Exchange', { worker, results, leaving }, CALL_S);
      if (!reply) continue;
      knows = leaving;
      this.outbox.taken(broker, reply.taken);
    }
  }

  async poll(broker) {
    for (;;) {
      const want = this.slots - this.tasks.size;
      if (this.leaving || broker !== this.home || want <= 0) {
        await this.nextChange();
        continue;
      }
      const needs = { cpus: want, memory_bytes: String(os.freemem()), labels: ['node'] };
      const request = {
        worker: this.name, want, free: needs, has: needs, types: TYPES, wait_s: POLL_S,
      };
      const reply = await this.callBroker(broker, 'Exchange', request, POLL_S + CALL_S);
      for (const lease of reply?.leases ?? []) this.take(broker, lease);
    }
  }

  async renew(broker) {
    for (;;) {
      const held = [...this.tasks.values()].filter((task) => task.broker === broker);
      if (held.length === 0) {
        await this.nextChange();
        continue;
      }
      const request = { worker: this.name, running: held.map((task) => task.report()), wait_s: RENEW_S };
      const reply = await this.callBroker(broker, 'Renew', request, RENEW_S + CALL_S);
      for (const { task_id: id, order } of reply?.answers ?? []) this.tasks.get(id)?.order(order, 5000);
      if (reply?.answers.length) await sleep(RETRY_MS);
    }
  }

  take(broker, lease) {
    const task = new Task(this.jobDir, this.modules, broker, lease);
    this.tasks.set(task.id, task);
    if (this.leaving) task.order('CHECKPOINT', 0);
    this.changed();
    task.run().then((result) => {
      this.outbox.put(broker, { ...result, worker: this.name });
      this.tasks.delete(task.id);
      this.changed();
    });
  }

  leave() {
    if (this.leaving) return;
    this.leaving = true;
    for (const task of this.tasks.values()) task.order('CHECKPOINT', this.graceMs);
    this.changed();
  }

  async run() {
    for (const broker of this.outbox.brokers()) this.attend(broker);
    const ends = ['search/ended', 'control/halt', 'control/cancel'];
    while (!this.leaving) {
      this.findHome();
      if (ends.some((file) => fs.existsSync(path.join(this.jobDir, file)))) this.leave();
      await sleep(RETRY_MS);
    }
    while (this.tasks.size > 0) await sleep(20);
    const end = Date.now() + LAST_RESULTS_MS;
    while (!this.outbox.isEmpty() && Date.now() < end) await sleep(20);
    this.outbox.close();
  }
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      name: { type: 'string' },
      slots: { type: 'string', default: '1' },
      modules: { type: 'string' },
      'grace-s': { type: 'string', default: '10' },
    },
  });
  if (positionals.length !== 1 || !values.name) {
    console.error('usage: node worker.js JOB_DIR --name NAME [--slots N] [--modules FOLDER] [--grace-s S]');
    process.exit(2);
  }
  const jobDir = path.resolve(positionals[0]);
  const worker = new Worker(jobDir, {
    name: values.name,
    slots: Number(values.slots),
    modules: path.resolve(values.modules ?? path.join(jobDir, 'code')),
    graceMs: 1000 * Number(values['grace-s']),
  });
  for (const signal of ['SIGTERM', 'SIGUSR2', 'SIGINT']) process.on(signal, () => worker.leave());
  await worker.run();
  process.exit(0);
}

main();

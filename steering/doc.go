// Package steering chooses the node that gets a new session.
//
// # Model
//
// A [Pool] holds nodes, plain data the caller supplies, behind stable ids: a node is
// known by its name, keeps its [NodeID], its counters, its pressure and its slow start
// for as long as [Pool.Set] keeps the name, and gets a new id when it is removed and
// added again. Whatever can change a choice (nodes, health, pressure, the clock) is
// compiled into an immutable view and swapped in; [Pool.Pick] reads one view.
//
// Pick asks, in this order:
//
//  1. which nodes may take a new session at all: enabled, up, past their recovery
//     time, with a weight, and not under severe pressure (which excludes nodes from
//     pass-through sessions only; optimised ones take pressured nodes last);
//  2. the [Metric] among the members, then, when all of them are down or at their
//     limit, among the nodes marked Backup;
//  3. the connection limit of the node: a node at its limit is passed over.
//
// Every session that Pick, [Pool.Acquire] or [Pool.Adopt] counted must be given back
// once with [Pool.Release], whatever ended it. The usual order is pick, store in the
// client table, release if somebody else was faster.
//
// # Weights
//
// The effective weight of a node is its configured weight, halved under high pressure
// and scaled by its slow start. Metrics without weights scale the same way: they
// treat the node as absent for the matching share of clients. A node of weight zero
// ([ZeroWeight]) gets no new session from any metric and keeps those it has.
//
// # Determinism
//
// Hashes are fixed between releases and depend on node names, never on the order of
// nodes, so that two balancers with one configuration answer alike. Config.Seed 0
// starts the cyclic metrics at the first node.
//
// # Concurrency and time
//
// All methods of Pool may be called at any time from any goroutine. Pick, Acquire,
// Release and the queries take no lock and do not allocate. Recovery times, slow
// starts and traffic intervals advance in [Pool.Run], or step by step in [Pool.Step].
//
// # Not in here
//
// Persistence (which client belongs to which node) is the caller's table; health is
// reported with [Pool.SetUp]; sockets and packets are somebody else's. In-path and
// load-balance rules are in steering/intercept, uplinks and channels in steering/path.
package steering

// Package healthcheck decides from repeated probes whether servers, ports and
// applications are alive.
//
// A [Prober] probes a target once and returns a [Result]; package probe has one
// for each common protocol. A [Monitor] probes many checks on a schedule and keeps
// a [State] for each. A [Roster] builds on it what an administrator configures:
// servers with their ports, each port up or down by a check of its own, an
// element, or a boolean policy over elements, see [Policies].
//
// # States
//
// [Enabled] and [Testing] are the way up, [Active] and [Suspect] are usable,
// [Graceful] keeps the sessions it has, [Failed] and [Unbound] are down. A target
// with a check is not usable until it passed for the first time. Counts are of
// results in a row; a result that is [Inconclusive], since it is about this
// machine and not about the target, is as if it had not been, but for being
// reported. What happens to a port, and to a check of a Monitor, in each state;
// events that are not listed change nothing:
//
//	enabled:  unbind unbound, server-up testing, pass testing, rise active, rise-draining graceful, fail testing, fall failed
//	testing:  unbind unbound, server-down enabled, rise active, rise-draining graceful, fall failed
//	active:   unbind unbound, server-down failed, fail suspect, fall failed, shutdown graceful
//	suspect:  unbind unbound, server-down failed, pass active, rise active, fall failed, shutdown graceful
//	failed:   unbind unbound, rise active, rise-draining graceful
//	graceful: unbind unbound, server-down failed, fall failed, enable active
//	unbound:  bind enabled
//
// and to a server, whose rise is an echo reply:
//
//	enabled:  pass testing, rise active, rise-draining graceful, resolved testing
//	testing:  rise active, rise-draining graceful, unresolved enabled
//	active:   fail suspect, fall failed, shutdown graceful, unresolved suspect, silence suspect
//	suspect:  pass active, rise active, fall failed, shutdown graceful, heard active
//	failed:   rise active, rise-draining graceful
//	graceful: fall failed, enable active
//	unbound:
//
// # Passive checks
//
// What a data plane sees can fail a port, and suspect a server, before the next probe
// would: SYNs that are not answered ([Roster.SYNs], [Roster.FailPassive]) and packets
// that nothing comes back for ([Roster.Traffic]). It revives nobody: that takes the
// active check, which is repeated at once. Package dataplane feeds a Roster so.
//
// # Virtual servers
//
// A [Virtual] is silent while fewer of its servers are usable than it wants.
//
// # Schedule
//
// First probes are spread evenly over one interval, and every later one keeps its
// place but for a jitter, so that no moment ever has more than its share. Probes
// come faster while a state is about to change. Probes in flight are bounded; a
// target that is not being probed costs memory, about one kilobyte, and no
// goroutine. One that is costs a goroutine only if its [Prober] is no [Starter].
//
// # Concurrency
//
// Methods are safe for concurrent use unless they say otherwise. Goroutines live
// inside Run only. Callbacks are called one at a time, in order, without locks.
//
// The package opens no socket and reads no clock but time.Now, so all of it runs
// in a testing/synctest bubble.
package healthcheck

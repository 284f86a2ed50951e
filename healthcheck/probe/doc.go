// Package probe has the built-in probers of package healthcheck: from ICMP echo and
// TCP half-open over the usual mail, web, directory and database protocols to
// scripts, commands and agents.
//
// # Common rules
//
// Each prober is a struct; its zero value works, or the error of its result names
// the field that is missing. Validate reports all faults of a prober's fields at
// once; Probe of an invalid prober is inconclusive. Probers are plain values: they
// may be copied, and one value may probe many targets at the same time, as long as
// nobody changes its fields, slices and maps meanwhile.
//
// One deadline covers a probe from dial to verdict. It is that of the context, or
// [DefaultTimeout] from now if the context has none, and no read or write moves it.
// How much of a reply is read is bounded. Replies may arrive in any pieces. When the
// verdict stands, the connection is closed with a TCP reset, after the protocol's
// word of farewell where it has one, so that probes leave no sockets in TIME_WAIT.
//
// Errors say at which step a probe failed and what was seen there:
//
//	smtp: greeting: got "554 no service", want 220
//
// What fails for a reason on this machine, such as a missing route, permission or
// descriptor, or because the caller cancelled the context, is inconclusive and wraps
// [healthcheck.ErrLocal]: it says nothing of the target.
//
// # Transport
//
// Probers over TCP and UDP have a [Dialer]; nil means the system's choice of
// everything. [Socket] is a Dialer that sets source address, interface, mark and
// DSCP. Probers with sockets of their own (ICMP, TCPHalfOpen, TFTP) have a field of
// type Socket instead.
//
// # Started probes
//
// On Linux, TCP, HTTP (without Content) and TCPHalfOpen are [healthcheck.Starter]s, if
// they have no Dialer or a [Socket]: a Monitor has thousands of them under way with one
// goroutine and one poller. Their sockets make one connection after the other: each ends
// with a reset by connect(2) with AF_UNSPEC, and the next has a port of its own. All
// half-open probes of one family and Socket share a raw socket and sixteen ports; while
// there is one, the kernel shows it a copy of every TCP segment that this machine
// receives itself, of which a filter drops all that is no answer. What nobody has used for a minute or two
// is closed. Sockets bound to an
// interface, by Socket.Interface or a link-local target, are not used again, since the
// interface may be another when its name comes again.
//
// The package decides nothing about repetition, rise and fall: that is the monitor's
// work. Where a protocol can lose single datagrams (ICMP, DNS, RADIUS, TFTP), a
// probe repeats them within its deadline.
package probe

// Package sslpersist keeps a TLS session on the server that holds it.
//
// A server can only resume a session whose keys it has. A balancer that sends a
// returning client elsewhere costs a full handshake each time. This package reads what
// is still in the clear, the hellos and the tickets of TLS, and remembers which server
// issued what.
//
// # The model
//
// The lowest layer is a parser. [ParseClientHello] and [ParseServerHello] read a hello
// from the start of a byte stream; a [Parser] does the same from chunks of any size
// without reading a byte twice. SSLv2-compatible hellos, SSL 3.0 and TLS 1.0 to 1.3 with
// its drafts are understood. Results alias the input; nothing is allocated where the
// hello lies in one record.
//
// A [Handshake] follows both directions of one connection and turns what it sees into
// [Lesson] values, by these rules:
//
//   - only the server's reply teaches: a client's own ID is never stored, so one who
//     invents IDs fills nothing, nor does a second hello that waits for no reply;
//   - TLS 1.3 echoes a random ID that means nothing: it teaches no ID, and neither does
//     a HelloRetryRequest;
//   - an ID that differs from the client's was issued: learn it;
//   - an echo without a ticket is a resumption by ID: learn it, so that bindings come
//     back after a restart of the balancer;
//   - an echo with a ticket only refreshes an ID that is known;
//   - a TLS 1.2 NewSessionTicket, and a TLS 1.3 pre-shared key the server accepted, show
//     the key name of that server's tickets.
//
// A [Table] binds session IDs to nodes, a [KeyTable] binds ticket key names. Both keep an
// entry until it was idle for the time of the node it is bound to, never evict a live
// entry (a full table refuses new ones and counts them), and forget a node in constant
// time. A [Farm] is both tables with the settings of one server farm, and a [Conn] is one
// connection through it: feed it, ask it whom to choose, tell it who was chosen.
//
// With TLS 1.3 this takes a while: its tickets are issued under encryption and show only
// when they are used, and one teaches only if the server that it met accepts it. A metric
// that sends a client's next connection elsewhere keeps that from happening for as long as
// there are several servers. [Settings.ClientAddr] brings the first connections back, and so
// does a metric by the client's address; two accepted tickets later the key name is known.
//
// Tables can be saved and restored ([Farm.WriteSnapshot]), and followed by a copy elsewhere
// change by change ([Table.Changes], [Delta]); a copy that lagged takes a snapshot.
//
// The order of precedence for a new connection is session ID, ticket key name, client
// address (if asked for), then whatever metric the caller has.
//
// # Concurrency
//
// Tables, farms and connections are safe for concurrent use. Parsers and handshakes are
// not. No goroutine is started but inside a Run method.
//
// # What it does not do
//
// It decrypts nothing: a renegotiation inside the encryption is invisible, and DTLS is not
// read. It does not balance: a connection without a binding is the caller's to place.
package sslpersist

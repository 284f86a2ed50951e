// Package l7 selects an action by what the first bytes of a connection say: an HTTP/1.x
// request, or the server name and protocols of a TLS handshake.
//
// A [Rule] has one or two methods, which must both match, and an action. [Compile] makes
// a [Policy] of rules; rows are tried in the order of their indexes and the first that
// matches decides. If none does, the default action applies.
//
// # Growing requests
//
// Requests arrive in pieces. [Policy.Classify] looks at what there is of one request and
// says [NeedMore], or what was decided, or that the byte budget is used up, or that the
// request is [Refused]. How the bytes were cut does not change the answer, and
// [Policy.Explain] says what it rests on. A [Stream]
// follows a whole connection: it tells where each request ends, so that the next can be
// classified too, as the modes [Overwrite] and [Maintain] want.
//
// # Safety
//
// Two parties that read one request differently can be played against each other. What
// is ambiguous is therefore refused, not guessed: differing or repeated framing fields,
// Content-Length beside Transfer-Encoding, line folding, bare CR, space before a colon,
// several Host fields, mixed line ends, and more; see [ErrMalformed]. A request's
// head is judged as a whole before anything of it is forwarded, but for the mode [First] and
// a head longer than the budget, which is not followed further.
//
// A Stream does not read replies: the caller must hold back what a client sends behind a request
// for another protocol ([Step].Upgrade) until the server has answered, and say when it declines,
// see [Stream.Declined]. [Replies] tells that, and when a reply is complete.
//
// # What it does not do
//
// The package terminates no TLS, and judges no server's replies. It needs the client's
// bytes, and for TLS what a handshake parser found. A Policy never changes and is safe
// for concurrent use; a Stream belongs to one connection.
package l7

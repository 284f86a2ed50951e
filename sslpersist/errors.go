package sslpersist

import "errors"

var (
	// ErrShort says that the bytes may be the beginning of a hello: more can help. At
	// the end of the stream it means that there was no hello.
	ErrShort = errors.New("sslpersist: short hello")
	// ErrNotTLS says that the stream is not TLS, nor an SSLv2-compatible hello.
	ErrNotTLS = errors.New("sslpersist: not TLS")
	// ErrMalformed says that the stream looks like TLS, but its hello is broken. The
	// error returned names what is broken, and errors.Is finds ErrMalformed in it.
	ErrMalformed = errors.New("sslpersist: malformed hello")
	// ErrTooLarge says that the hello announces more than [MaxHello] bytes.
	ErrTooLarge = errors.New("sslpersist: hello larger than 64 KiB")
	// ErrAlert says that a fatal alert came in place of the hello.
	ErrAlert = errors.New("sslpersist: alert instead of a hello")
	// ErrFull says that a table is full of live entries. The connection goes on,
	// without a binding.
	ErrFull = errors.New("sslpersist: table full of live entries")
	// ErrSnapshot says that a snapshot is damaged, or of an unknown version. Nothing of
	// it was used.
	ErrSnapshot = errors.New("sslpersist: unusable snapshot")
)

// MaxHello is the size of the largest handshake message that is read, in bytes.
const MaxHello = 64 << 10

// malformed is a reason for ErrMalformed. Its values are constants, so that returning
// one does not allocate.
type malformed string

func (m malformed) Error() string { return ErrMalformed.Error() + ": " + string(m) }

func (m malformed) Unwrap() error { return ErrMalformed }

const (
	errRecordLength   = malformed("record of no or more than 18,432 bytes")
	errRecordType     = malformed("record of no known type or version")
	errEOF            = malformed("stream ends inside it")
	errInterleaved    = malformed("another record inside a handshake message")
	errNoClientHello  = malformed("first message is not a ClientHello")
	errNoServerHello  = malformed("first message is not a ServerHello")
	errTruncated      = malformed("field reaches past the end of the message")
	errTrailing       = malformed("bytes after the last field")
	errVersion        = malformed("version is none of SSL 3.0 to TLS 1.3")
	errSessionID      = malformed("session ID longer than 32 bytes")
	errCiphers        = malformed("cipher suites of odd length, or none")
	errCompression    = malformed("no compression method")
	errDuplicate      = malformed("extension given twice")
	errServerName     = malformed("server_name extension")
	errALPN           = malformed("application_layer_protocol_negotiation extension")
	errVersions       = malformed("supported_versions extension")
	errPSK            = malformed("pre_shared_key extension")
	errSSLv2          = malformed("SSLv2 hello whose lengths do not add up")
	errNoCipherServer = malformed("ServerHello ends before its cipher suite")
)

package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// adminServer is the admin interface of an instance.
type adminServer struct {
	log     *slog.Logger
	handler http.Handler
	conf    atomic.Pointer[admin]
	secrets atomic.Pointer[secrets] // nil without TCP
	bodies  time.Duration           // how long the body of a request may take

	mu          sync.Mutex // for changes
	socket, tcp *door
	serve       func(*door) // while it runs, else nil
	retire      func(*door)
	serving     sync.WaitGroup
}

// secrets are what the TCP listener needs.
type secrets struct {
	cert  tls.Certificate
	token [sha256.Size]byte
}

const minToken = 16

// readSecrets reads certificate, key and token.
func (a admin) readSecrets() (*secrets, error) {
	s := &secrets{}
	cert, err := tls.LoadX509KeyPair(a.Certificate, a.Key)
	if err != nil {
		return nil, fmt.Errorf("admin: certificate and key: %w", err)
	}
	s.cert = cert
	b, err := os.ReadFile(a.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("admin: token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if len(token) < minToken || strings.ContainsAny(token, " \t\n") {
		return nil, fmt.Errorf("admin: token: %s: want one line of at least %d characters, such as openssl rand -hex 24 prints", a.TokenFile, minToken)
	}
	s.token = sha256.Sum256([]byte(token))
	return s, nil
}

// openAdmin opens the listeners.
func openAdmin(a admin, log *slog.Logger, handler http.Handler) (*adminServer, error) {
	s := &adminServer{log: log, handler: handler, bodies: 10 * time.Second}
	next, err := s.prepare(admin{Socket: "none"}, a)
	if err != nil {
		return nil, err
	}
	s.become(next)
	return s, nil
}

// listenUnix opens a socket for its owner only, in place of one that nobody listens on any more.
func listenUnix(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("admin: socket: %w; fix: set admin.socket in the file", err)
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("admin: socket %s: another instance listens on it; fix: stop that one and wait for its end, or set admin.socket in the file", path)
	}
	if st, err := os.Stat(path); err == nil && st.Mode()&os.ModeSocket == 0 {
		return nil, fmt.Errorf("admin: socket %s: there is something else, which is left alone; fix: set admin.socket in the file to a path of its own", path)
	}
	// It gets its name only once nobody else may open it.
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	_ = os.Remove(fresh)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("admin: socket: %w; fix: set admin.socket in the file", err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, path)); err != nil {
		l.Close()
		return nil, fmt.Errorf("admin: socket: %w", err)
	}
	return l, nil
}

// open is a listener that goes on listening when a server closes it, but gives nobody to it any more.
type open struct{ *net.UnixListener }

func (l open) Close() error { return l.SetDeadline(time.Unix(1, 0)) }

// guard lets only those through who may: over TCP who has the token, and never a page of another site.
func (s *adminServer) guard(next http.Handler, tcp bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("Cache-Control", "no-store")
		if r.ContentLength != 0 { // also who is refused would else keep the connection, by a body that never ends
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodies))
		}
		if why := s.foreign(r, tcp); why != "" {
			s.refuse(w, r, http.StatusForbidden, why)
			return
		}
		if tcp && !isPage(r) && !s.hasToken(r) {
			h.Set("WWW-Authenticate", `Bearer realm="l4lb"`)
			s.refuse(w, r, http.StatusUnauthorized, "want the header Authorization: Bearer TOKEN, with the token of admin.token-file")
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			// A form of another site cannot send this type unasked.
			if t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); t != "application/json" {
				s.refuse(w, r, http.StatusUnsupportedMediaType, "want the header Content-Type: application/json")
				return
			}
			r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
		}
		next.ServeHTTP(w, r)
	})
}

func (s *adminServer) refuse(w http.ResponseWriter, r *http.Request, code int, why string) {
	s.log.Warn("admin request refused", "from", r.RemoteAddr, "method", r.Method, "path", r.URL.Path, "code", code, "why", why)
	replyError(w, code, errors.New(why))
}

// foreign says why a request must come from a page of another site, or from one that has our address by a name of its own.
func (s *adminServer) foreign(r *http.Request, tcp bool) string {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	_, err := netip.ParseAddr(host)
	switch known := strings.EqualFold(host, "localhost"); {
	case known:
	case tcp && (err == nil || slices.ContainsFunc(s.conf.Load().Names, func(n string) bool { return strings.EqualFold(n, host) })):
	case !tcp && (host == "l4lb" || host == "127.0.0.1" || host == "::1"):
	default:
		return fmt.Sprintf("host %q is not a name of this interface; admin.names lists more", host)
	}
	site := r.Header.Get("Sec-Fetch-Site")
	visit := isPage(r) && r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	if site != "" && site != "same-origin" && site != "none" && !visit {
		return fmt.Sprintf("the request comes from a page of another site (Sec-Fetch-Site: %s)", site)
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		scheme := "http://"
		if tcp {
			scheme = "https://"
		}
		if !strings.EqualFold(origin, scheme+r.Host) && !visit {
			return fmt.Sprintf("the request comes from a page of another site (Origin: %s)", origin)
		}
	}
	return ""
}

// hasToken compares in a time that does not depend on what was sent.
func (s *adminServer) hasToken(r *http.Request) bool {
	got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(got))
	x := s.secrets.Load()
	return x != nil && subtle.ConstantTimeCompare(sum[:], x.token[:]) == 1 && ok
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the caller may be gone
}

func replyError(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(errorReply{err.Error()})
}

// readJSON reads a request strictly.
func readJSON(r *http.Request, v any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return &requestError{http.StatusBadRequest, fmt.Errorf("body: %w", err)}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return &requestError{http.StatusBadRequest, errors.New("body: want one JSON object only")}
	}
	return nil
}

// requestError is an error with its status.
type requestError struct {
	code int
	err  error
}

func (e *requestError) Error() string { return e.err.Error() }
func (e *requestError) Unwrap() error { return e.err }

func badRequest(format string, args ...any) error {
	return &requestError{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

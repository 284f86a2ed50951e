package main

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/pquerna/cachecontrol"
	"github.com/pquerna/cachecontrol/cacheobject"
)

// cache is a shared HTTP cache in front of a transport. What may be stored, and for how long, says cachecontrol; the cache knows GET. What is stale and
// has an entity tag or a date is asked for under the condition that it has changed (RFC 9111, 4.3).
type cache struct {
	next http.RoundTripper
	most int

	mu      sync.Mutex
	bytes   int
	entries *lru.LRU[string, *entry] // by URL, and then by what the response varies with
	hits    int
	renewed int // stale ones that had not changed
}

type entry struct {
	key     string
	vary    []string
	status  int
	header  http.Header
	body    []byte
	stored  time.Time
	expires time.Time
}

// mostEntry is the part of the cache that one response may fill.
const mostEntry = 16

func newCache(next http.RoundTripper, most int) *cache {
	c := &cache{next: next, most: most}
	c.entries, _ = lru.NewLRU(1<<20, func(_ string, e *entry) { c.bytes -= e.size() }) // the size is positive
	return c
}

func (e *entry) size() int {
	n := 512 + len(e.key) + len(e.body)
	for k, vs := range e.header {
		n += len(k)
		for _, v := range vs {
			n += len(v)
		}
	}
	return n
}

// RoundTrip implements http.RoundTripper.
func (c *cache) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet || c.private(r) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions {
			c.forget(address(r)) // RFC 9111, 4.4
		}
		return c.next.RoundTrip(r)
	}
	res, stale := c.load(r)
	if res != nil {
		return res, nil
	}
	ask := r
	if stale != nil {
		ask = r.Clone(r.Context())
		stale.condition(ask.Header)
	}
	res, err := c.next.RoundTrip(ask)
	if err != nil {
		return nil, err
	}
	if stale != nil && res.StatusCode == http.StatusNotModified {
		res.Body.Close()
		return c.renew(r, stale, res).response(r, time.Now()), nil
	}
	return c.store(r, res), nil
}

// validated reports whether a server can say that it has not changed.
func validated(h http.Header) bool { return h.Get("ETag") != "" || h.Get("Last-Modified") != "" }

// condition asks for the response if it is another one now.
func (e *entry) condition(h http.Header) {
	if tag := e.header.Get("ETag"); tag != "" {
		h.Set("If-None-Match", tag)
	}
	if date := e.header.Get("Last-Modified"); date != "" {
		h.Set("If-Modified-Since", date)
	}
}

// fresh says for how long a response may be used unasked, if it may be stored at all.
func fresh(r *http.Request, res *http.Response) (until time.Time, ok bool) {
	reasons, until, err := cachecontrol.CachableResponse(r, res, cachecontrol.Options{})
	if err != nil || len(reasons) > 0 {
		return time.Time{}, false
	}
	d, err := cacheobject.ParseResponseCacheControl(strings.Join(res.Header.Values("Cache-Control"), ","))
	if err != nil || d.NoCachePresent {
		until = time.Time{} // which cachecontrol leaves to its caller
	}
	return until, true
}

// renew stores a response anew that has not changed, with what the server says of it now (RFC 9111, 3.2 and 4.3.4).
func (c *cache) renew(r *http.Request, old *entry, res *http.Response) *entry {
	e := *old
	e.header, e.stored = old.header.Clone(), time.Now()
	e.header.Del("Age")
	for name, values := range res.Header {
		switch name {
		case "Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Content-Encoding", "Content-Range", "Content-Type":
		default:
			e.header[name] = values
		}
	}
	full := &http.Response{StatusCode: e.status, Header: e.header, Request: r}
	ok := false
	e.expires, ok = fresh(r, full)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renewed++
	if !ok || res.Header.Get("Set-Cookie") != "" {
		c.entries.Remove(e.key)
	} else {
		c.add(e.key, &e)
	}
	return &e
}

// private reports whether a request is none of the cache's business: it asks for a part, or for a change since, or is of a client that
// servers know by its certificate.
func (c *cache) private(r *http.Request) bool {
	for _, name := range []string{"Range", "Upgrade", "If-None-Match", "If-Modified-Since", "If-Match", "If-Unmodified-Since", headerSubject} {
		if r.Header.Get(name) != "" {
			return true
		}
	}
	return false
}

func address(r *http.Request) string { return r.Host + " " + r.URL.RequestURI() }

// variant is the key of a response that varies with fields of the request.
func variant(r *http.Request, vary []string) string {
	var b strings.Builder
	b.WriteString(address(r))
	for _, name := range vary {
		b.WriteString("\n" + strconv.Quote(strings.Join(r.Header.Values(name), ",")))
	}
	return b.String()
}

// load returns a fresh response, or a stale one that may be asked about, or neither.
func (c *cache) load(r *http.Request) (fresh *http.Response, stale *entry) {
	if strings.Contains(r.Header.Get("Cache-Control"), "no-cache") || strings.Contains(r.Header.Get("Cache-Control"), "max-age=0") || r.Header.Get("Pragma") == "no-cache" {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries.Get(address(r))
	if ok && len(e.vary) > 0 {
		e, ok = c.entries.Get(variant(r, e.vary))
	}
	now := time.Now()
	switch {
	case ok && now.Before(e.expires):
		c.hits++
		return e.response(r, now), nil
	case ok && validated(e.header):
		return nil, e
	}
	return nil, nil
}

func (e *entry) response(r *http.Request, now time.Time) *http.Response {
	h := e.header.Clone()
	age, _ := strconv.Atoi(h.Get("Age")) // none is 0
	h.Set("Age", strconv.Itoa(age+int(now.Sub(e.stored)/time.Second)))
	return &http.Response{Status: http.StatusText(e.status), StatusCode: e.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: io.NopCloser(bytes.NewReader(e.body)), ContentLength: int64(len(e.body)), Request: r}
}

// store keeps a response if it may be kept, once its body has been read to the end.
func (c *cache) store(r *http.Request, res *http.Response) *http.Response {
	expires, ok := fresh(r, res)
	if !ok || !expires.After(time.Now()) && !validated(res.Header) || res.Header.Get("Set-Cookie") != "" ||
		res.ContentLength > int64(c.most/mostEntry) || res.StatusCode < 200 || res.StatusCode == http.StatusPartialContent {
		return res
	}
	var vary []string
	for _, v := range res.Header.Values("Vary") {
		for name := range strings.SplitSeq(v, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); name == "*" {
				return res
			} else if name != "" {
				vary = append(vary, name)
			}
		}
	}
	e := &entry{key: address(r), vary: vary, status: res.StatusCode, header: res.Header.Clone(), stored: time.Now(), expires: expires}
	full := variant(r, vary)
	res.Body = &copying{ReadCloser: res.Body, most: c.most / mostEntry, done: func(body []byte) {
		e.body = body
		c.mu.Lock()
		defer c.mu.Unlock()
		c.add(e.key, e)
		if len(vary) > 0 {
			v := *e
			v.key = full
			c.add(full, &v)
		}
	}}
	return res
}

func (c *cache) add(key string, e *entry) {
	c.entries.Remove(key)
	c.bytes += e.size()
	c.entries.Add(key, e)
	for c.bytes > c.most {
		c.entries.RemoveOldest()
	}
}

func (c *cache) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries.Remove(key)
}

// copying keeps what is read of a body, and hands it over at its end if it is not too much.
type copying struct {
	io.ReadCloser
	most int
	b    bytes.Buffer
	done func([]byte)
}

func (c *copying) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if c.done != nil {
		if c.b.Write(p[:n]); c.b.Len() > c.most {
			c.done, c.b = nil, bytes.Buffer{}
		} else if err == io.EOF {
			c.done(c.b.Bytes())
			c.done = nil
		}
	}
	return n, err
}

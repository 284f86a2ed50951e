package l7

// appendNormalized appends a path as most servers see it: percent-encoded bytes decoded
// once, runs of slashes made one, "." and ".." segments resolved, never above the root.
// Encoded slashes and control characters stay encoded, so that decoding adds no segment
// and no line end; what is not a valid encoding stays as it is.
func appendNormalized(dst, path []byte) []byte {
	base := len(dst)
	for i := 0; i < len(path); i++ {
		c := path[i]
		if c == '%' && i+2 < len(path) && isHex(path[i+1]) && isHex(path[i+2]) {
			d := unhex(path[i+1])<<4 | unhex(path[i+2])
			if d == '/' || d < ' ' || d == 0x7f {
				dst = append(dst, '%', upper(path[i+1]), upper(path[i+2]))
			} else {
				dst = append(dst, d)
			}
			i += 2
			continue
		}
		dst = append(dst, c)
	}
	return append(dst[:base], resolve(dst[base:])...)
}

// resolve removes dot segments and empty segments in place.
func resolve(p []byte) []byte {
	if len(p) == 0 || p[0] != '/' {
		return p
	}
	n := 0 // p[:n] is the result so far, without a final slash
	for i := 0; i < len(p); {
		i++ // the slash
		end := i
		for end < len(p) && p[end] != '/' {
			end++
		}
		last := end == len(p)
		switch string(p[i:end]) {
		case "", ".":
			if last {
				p[n] = '/'
				n++
			}
		case "..":
			for n > 0 && p[n-1] != '/' {
				n--
			}
			if n > 0 {
				n--
			}
			if last {
				p[n] = '/'
				n++
			}
		default:
			p[n] = '/'
			n += 1 + copy(p[n+1:], p[i:end])
		}
		i = end
	}
	return p[:n]
}

func upper(c byte) byte {
	if 'a' <= c && c <= 'z' {
		return c &^ 0x20
	}
	return c
}

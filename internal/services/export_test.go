package services

// MoveTo makes the next start use another port.
func (s *Server) MoveTo(port int) { s.port = port }

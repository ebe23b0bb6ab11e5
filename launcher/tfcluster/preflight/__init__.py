"""What would stop a start: probes, rules for their answers, and the doctor."""
